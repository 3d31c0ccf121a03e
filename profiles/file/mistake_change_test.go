package file

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The positions are from this package; reasons of invalid values are from package
// profiles.
func TestMistakesInChanges(t *testing.T) {
	const aShare = "want a share from 0 to 1, or from 0% to 100%"
	const aSize = "want a number of bytes such as 65536 or 64KiB, up to 16MiB"
	in := func(field string) string { return "target: web\nroutes:\n- match: {pathPrefix: /}\n  " + field + "\n" }
	for _, c := range []struct{ name, yaml, want string }{
		{"no change", in("requestHeader: {}"), `f:4:18: routes[0].requestHeader: no change: want one or more of add, remove, set`},
		{"changes", in("responseHeader: [a]"), `f:4:19: routes[0].responseHeader: want a mapping, not a list`},
		{"unknown change", in("requestHeader: {append: {a: b}}"), `f:4:19: routes[0].requestHeader.append: unknown field: there are add, remove, set`},
		{"set twice", in("requestHeader: {set: {a: [b, c]}}"), `f:4:28: routes[0].requestHeader.set.a: want a single value, not a list`},
		{"remove", in("requestHeader: {remove: [[a]]}"), `f:4:28: routes[0].requestHeader.remove[0]: want a single value, not a list`},
		{"no token", in("requestHeader: {set: {'a b': c}}"), `f:4:18: routes[0].requestHeader: set "a b": name must consist of `},
		{"a connection's own", in(`responseHeader: {remove: [x, connection]}`), `f:4:19: routes[0].responseHeader: remove "connection": belongs to the connection, not to the message`},

		{"nowhere", in("redirect: {}"), `f:4:13: routes[0].redirect: no location: want one or more of scheme, host, port, path, oldPrefix with newPrefix`},
		{"redirect", in("redirect: https://www.example"), `f:4:13: routes[0].redirect "https://www.example": want a mapping, not a single value`},
		{"redirect's status", in("redirect: {status: 200, host: www}"), `f:4:13: routes[0].redirect: status 200 is `},
		{"redirect's scheme", in("redirect: {scheme: ftp}"), `f:4:13: routes[0].redirect: `},
		{"redirect's host", in("redirect: {host: 'www/'}"), `f:4:13: routes[0].redirect: `},
		{"redirect's port", in("redirect: {port: 0}"), `f:4:20: routes[0].redirect.port "0": want a port from 1 to 65535`},
		{"two paths", in("redirect: {path: /a, oldPrefix: /b, newPrefix: /c}"), `f:4:13: routes[0].redirect: `},

		{"faults", in("faults: {ttl: 1m}"), `f:4:11: routes[0].faults: want a list, not a mapping`},
		{"empty fault", in("faults: [~]"), `f:4:12: routes[0].faults[0]: an empty fault: take it out`},
		{"no share", in("faults: [{status: 500}]"), "f:4:12: routes[0].faults[0].share: missing: write the share of the requests: 0.1, or 10%"},
		{"no rewrite", in("rewrite: {}"), `f:4:12: routes[0].rewrite: no host or path`},
		{"rewrite's path", in("rewrite: {path: b}"), `f:4:12: routes[0].rewrite: path "b" does not begin with /`},
		{"rewrite's host", in("rewrite: {host: a/b}"), `f:4:12: routes[0].rewrite: host "a/b" is not a host with an optional port`},
		{"no response", in("respond: {message: hello}"), `f:4:12: routes[0].respond.status: missing: write the status of the response: 503`},
		{"response's status", in("respond: {status: 99}"), `f:4:12: routes[0].respond: status 99 is not from 200 to 999`},
		{"response's header", in("respond: {status: 200, header: {content-length: '1'}}"),
			`f:4:12: routes[0].respond: header: set "content-length": belongs to the connection, not to the message`},
		{"share", in("faults: [{share: 2, status: 500, ttl: 1m}]"), `f:4:20: routes[0].faults[0].share "2": ` + aShare},
		{"percentage", in("faults: [{share: 101%, status: 500, ttl: 1m}]"), `f:4:20: routes[0].faults[0].share "101%": ` + aShare},
		{"does nothing", in("faults: [{share: 1, ttl: 1m}]"), `f:4:12: routes[0].faults[0]: `},
		{"fault's status", in("faults: [{share: 1, status: 99, ttl: 1m}]"), `f:4:12: routes[0].faults[0]: `},
		{"gRPC status", in("faults: [{share: 1, grpc: GONE, ttl: 1m}]"),
			`f:4:29: routes[0].faults[0].grpc "GONE": want a status of gRPC from 1 to 16, or its name, such as UNAVAILABLE`},

		{"too many faults", in("faults: [{share: 60%, status: 500, ttl: 1m}, {share: 60%, status: 500, ttl: 1m}]"), `f:4:48: routes[0].faults[1]: fraction 0.6 is more `},
		{"each fault", in("faults: [{share: 1, ttl: 1m}, {share: 1, status: 500}, {share: 1, ttl: 2m}]"), "f:4:12: routes[0].faults[0]: no delay and no status\n" +
			"f:4:58: routes[0].faults[2]: no delay and no status"},
		{"OK is not a fault", in("faults: [{share: 1, status: 500, grpc: OK, ttl: 1m}]"),
			`f:4:42: routes[0].faults[0].grpc "OK": want a status of gRPC from 1 to 16, or its name, such as UNAVAILABLE`},
		{"class by gRPC", in("classes: [{match: {grpc: [17, 14-13, OOPS]}, failure: true}]"),
			`f:4:29: routes[0].classes[0].match.grpc[0] "17": ` + "want " + aGRPCStatus + ", or a range such as 13-15\n" +
				`f:4:33: routes[0].classes[0].match.grpc[1] "14-13": ` + "want " + aGRPCStatus + ", or a range such as 13-15\n" +
				`f:4:40: routes[0].classes[0].match.grpc[2] "OOPS": ` + "want " + aGRPCStatus + ", or a range such as 13-15"},
		{"class by trailer", in("classes: [{match: {trailer: {'a b': c}}, failure: true}]"), `f:4:39: routes[0].classes[0].match.trailer["a b"] "c": `},

		{"empty mirror", in("mirrors: [~]"), `f:4:13: routes[0].mirrors[0]: an empty mirror: take it out`},
		{"no mirror", in("mirrors: [{share: 1}]"), `f:4:13: routes[0].mirrors[0].target: missing: write the target of the copies: web-v2.default.svc.cluster.local:80`},
		{"mirror's target", in("mirrors: [{target: ''}]"), `f:4:22: routes[0].mirrors[0].target: want a text that is not empty`},
		{"mirror's share", in("mirrors: [{target: a, share: 0}]"), `f:4:32: routes[0].mirrors[0].share "0": want a share above 0; for no copies, take the mirror out`},
		{"mirror's body", in("mirrors: [{target: a, body: -1}]"), `f:4:31: routes[0].mirrors[0].body "-1": ` + aSize},
		{"too large", in("mirrors: [{target: a, body: 17MiB}]"), `f:4:31: routes[0].mirrors[0].body "17MiB": ` + aSize},
	} {
		t.Run(c.name, func(t *testing.T) { requireMistakes(t, c.yaml, c.want) })
	}
}

func TestHeaderWithLineFeed(t *testing.T) {
	_, err := Parse("f", []byte("target: web\nroutes:\n- match: {pathPrefix: /}\n  requestHeader: {add: {a: [b, \"c\\nd\"]}}\n"))
	require.ErrorContains(t, err, `f:4:18: routes[0].requestHeader: add "a": `)
}

// Of several targets with one profile, each has copies sent to its own port.
func TestMirrorPort(t *testing.T) {
	s := parse(t, "target: [web:81, api]\nroutes:\n- {match: {path: /}, mirrors: [{target: v2}, {target: v3:90}]}\n- {match: {all: []}}\n")
	authorities := func(target string) (found []string) {
		for _, m := range s.Profile(target).Routes[0].Mirrors {
			found = append(found, m.Authority)
		}
		return found
	}
	for range 2 {
		for target, port := range map[string]string{"web:81": "81", "api": "80", "api:82": "82"} {
			if got := authorities(target); got[0] != "v2:"+port || got[1] != "v3:90" {
				t.Fatalf("%s: %v", target, got)
			}
		}
	}
}
