package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles/file"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

func TestTap(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]serving{"ours": ours, "linkerds": linkerds} {
		t.Run(name, func(t *testing.T) {
			p := newTapped(t, serve)
			r := p.until(t, prints("response-length=9B\n"), "tap", "--path", "/seen/a", "--to", "pod/web-0", "--to-namespace", "default", "--scheme", "http",
				"--authority", "web.default", "--method", "GET")
			require.NoError(t, r.err)
			require.Contains(t, r.out, "dst=10.0.0.1:80 tls= :method=GET :authority=web.default :path=/seen/a\n")
			require.Contains(t, r.out, " :status=418 latency=")
			require.Contains(t, r.out, "response-length=9B\n")
			require.NotContains(t, r.out, "/seen/b")
			require.NotContains(t, r.out, "namespace")

			began := time.Now()
			r = p.until(t, prints("req "), "tap", "--max-rps", "2", "-o", "wide")
			require.NoError(t, r.err)
			require.LessOrEqual(t, strings.Count(r.out, "req "), 2*int(2+time.Since(began).Seconds()), "a second may have turned")
			require.Contains(t, r.out, " dst_namespace=default dst_pod=web-0")

			r = p.until(t, succeeds, "tap", "--path", "/other")
			require.NoError(t, r.err)
			require.Empty(t, r.out)
			require.Regexp(t, `^tapctl: no such request in [0-9.]+m?s; tapctl check may find the reason\n$`, r.warnings)

			r = p.with(t, "tap", "-o", "json", "--limit", "1", "--path", "/seen")
			require.NoError(t, r.err)
			require.Contains(t, r.out, `"httpStatus": 418`)
			require.Contains(t, r.out, `"name": "x-who"`)
			require.Contains(t, r.out, "[redacted]")
			require.NotContains(t, r.out, secret)
			require.NotContains(t, r.out, "\x1b")
		})
	}
}

// A template prints the same object as -o json, with header fields.
func TestTapJSONPath(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]serving{"ours": ours, "linkerds": linkerds} {
		t.Run(name, func(t *testing.T) {
			p := newTapped(t, serve)
			for template, want := range map[string]string{
				`{.requestInitEvent.method} {.requestInitEvent.path}{"\n"}`: "GET /seen/a\n",
				"requestInitEvent.path":                                              "/seen/a\n",
				"{.responseInitEvent.httpStatus}":                                    "418\n",
				"to={.destination.metadata.pod}":                                     "to=web-0\n",
				`{.requestInitEvent.headers[?(@.name=="x-who")].valueStr}`:           "me\n",
				`{range .requestInitEvent.headers[*]}{.name}={.valueStr}{"\n"}{end}`: "cookie=[redacted]\n",
			} {
				r := p.until(t, prints(want), "tap", "--path", "/seen/a", "-o", "jsonpath="+template)
				require.NoError(t, r.err)
				require.Contains(t, "\n"+r.out, "\n"+want, template)
				require.NotContains(t, r.out, "\n\n", "an event that has nothing of it has no line")
				require.Empty(t, r.warnings)
			}
			r := p.until(t, prints(""), "tap", "-o", "jsonpath={.source.port} {.requestInitEvent.headers[99].name}")
			require.NoError(t, r.err)
			require.Equal(t, 1, strings.Count(r.warnings, "tapctl: -o jsonpath: of some events: array index out of bounds: index 99"), r.warnings)
		})
	}
}

// Secrets are withheld by the process, and unprintable characters are escaped.
func TestSecretsWithheld(t *testing.T) {
	t.Parallel()
	p := newTapped(t, ours)
	for _, args := range [][]string{
		{"tap"},
		{"tap", "-o", "wide", "--explain", "--body", "1000", "--header", "authorization"},
		{"tap", "-o", "json", "--explain", "--body", "1000", "--header", "cookie"},
		{"tap", "-o", "jsonpath={}", "--explain", "--body", "1000", "--header", "cookie"},
		{"tap", "-o", "jsonpath={range .*.*}{@}{'\\n'}{end}", "--explain", "--body", "1000", "--header", "cookie"},
		{"tap", "-o", "jsonpath={.requestInitEvent.path} {..valueStr}", "--body", "1000"},
		{"top", "-o", "json"},
		{"top", "--once", "-o", "wide"},
		{"profile"},
	} {
		r := p.until(t, prints("/seen/"), args...)
		require.NoError(t, r.err)
		require.NotEmpty(t, r.out)
		require.NotContains(t, r.out+r.warnings, secret, args)
		require.NotContains(t, r.out+r.warnings, "\x1b", args)
	}
}

// Features of gotower's own service, and the errors of a process without it.
func TestTapGotowerFeatures(t *testing.T) {
	t.Parallel()
	p, q := newTapped(t, ours), newTapped(t, linkerds)
	for _, tt := range []struct {
		args []string
		want []string
		not  string
	}{
		{[]string{"--status", "418", "--body", "4", "--explain"}, []string{
			"418", "    balance chosen=10.0.0.1:80\n", `    response-body="shor" …`,
		}, "/broken"},
		{[]string{"--status", "4xx", "-o", "json", "--explain", "--body", "100"}, []string{
			`"chosen": "10.0.0.1:80"`, `"valueStr": "short\u001b[2J"`,
		}, "/broken"},
		{[]string{"--failures"}, []string{":path=/broken", "end "}, "/seen"},
		{[]string{"--slower", "1ns"}, []string{"end "}, "unknown"},
		{[]string{"--header", "x-who=me", "--header", "cookie"}, []string{":path=/seen"}, "secret"},
		{[]string{"--sample", "0.5"}, []string{":path=/"}, "unknown"},
	} {
		args := append([]string{"tap", "--limit", "9"}, tt.args...)
		r := p.with(t, args...)
		require.NoError(t, r.err, tt.args)
		for _, want := range tt.want {
			require.Contains(t, r.out, want, tt.args)
		}
		require.NotContains(t, r.out, tt.not, tt.args)

		r = q.with(t, args...)
		require.ErrorContains(t, r.err, q.addr+": it has linkerd's tap only, which has no ", tt.args)
		require.ErrorContains(t, r.err, tt.args[0])
	}
	r := p.until(t, prints(":path=/"), "tap", vacant(t))
	require.NoError(t, r.err, "one of them is there")
	require.Contains(t, r.warnings, "No server accepts connections")
	require.Contains(t, r.out, ":path=/")
	r = p.until(t, prints(":path=/broken"), "tap", "--failures", q.addr)
	require.NoError(t, r.err, "one of them can")
	require.Contains(t, r.warnings, "tapctl: "+q.addr+": it has linkerd's tap only")
	require.Contains(t, r.out, ":path=/broken")
	require.Equal(t, 1, strings.Count(r.warnings, "it has linkerd's tap only"), r.warnings)
}

func TestTop(t *testing.T) {
	t.Parallel()
	p, q := newTapped(t, ours), newTapped(t, linkerds)
	var rows []map[string]any
	r := p.until(t, func(r result) bool {
		return json.Unmarshal([]byte(r.out), &rows) == nil && len(rows) > 0 && rows[0]["p99_ms"] != 0.0
	}, "top", "-o", "json", "--path", "/seen/a")
	require.NoError(t, r.err)
	require.NoError(t, json.Unmarshal([]byte(r.out), &rows), r.out)
	require.Len(t, rows, 1)
	require.Equal(t, "web-0", rows[0]["destination"])
	require.Equal(t, "/seen/a", rows[0]["path"])
	require.Positive(t, rows[0]["p99_ms"])

	r = p.until(t, prints("[DEFAULT]"), "top", "--once", "--routes", "--hide-sources", "-o", "wide")
	require.NoError(t, r.err)
	lines := strings.Split(r.out, "\n")
	require.Len(t, lines, 3, r.out)
	require.Contains(t, lines[0], "Destination             Route ")
	require.Contains(t, lines[1], "web-0                   [DEFAULT]")

	r = p.until(t, prints("0.00%"), "top", "--header", "x-who=me", "--path", "/broken")
	require.NoError(t, r.err)
	require.Contains(t, r.out, "0.00%", "printed at the end")
	require.ErrorContains(t, q.with(t, "top").err, "it has linkerd's tap only, which has no counts of requests")
	r = p.until(t, succeeds, "top", "--once", "--path", "/nothing")
	require.NoError(t, r.err)
	require.Empty(t, r.out)
	require.Contains(t, r.warnings, "no such request in")
	require.Contains(t, r.warnings, "tapctl check")
}

func TestStat(t *testing.T) {
	t.Parallel()
	p := newTapped(t, ours)
	r := p.until(t, prints("web-0"), "stat")
	require.NoError(t, r.err)
	lines := strings.Split(r.out, "\n")
	require.Equal(t, []string{"DESTINATION", "DIRECTION", "SUCCESS", "RPS", "P50", "P95", "P99", "OPEN", "REQUESTS"}, strings.Fields(lines[0]))
	require.Equal(t, []string{"web-0", "outbound"}, strings.Fields(lines[1])[:2])
	require.Len(t, lines, 3, "one row, whatever the paths: %s", r.out)

	var rows []stat
	r = newTapped(t, ours).until(t, func(r result) bool {
		return json.Unmarshal([]byte(r.out), &rows) == nil && len(rows) > 0 && rows[0].Requests > 50
	}, "stat", "-o", "json")
	require.NoError(t, r.err)
	require.NoError(t, json.Unmarshal([]byte(r.out), &rows))
	require.Len(t, rows, 1)
	require.InDelta(t, 0.8, *rows[0].SuccessRate, 0.1)
	require.Positive(t, rows[0].P50)
	require.Positive(t, rows[0].Requests)
	r = p.until(t, succeeds, "stat", "--path", "/nothing")
	require.NoError(t, r.err)
	require.Contains(t, r.warnings, "no such request in ")
}

// The row (other) of a table by destination has its name in JSON and in the table.
func TestStatOtherRow(t *testing.T) {
	rows := []*tappb.Row{{Path: "(other)", Direction: 2, Count: 3}, {Destination: "web-0", Direction: 2, Count: 2}}
	var out strings.Builder
	require.NoError(t, writeStatJSON(&out, rows))
	var all []stat
	require.NoError(t, json.Unmarshal([]byte(out.String()), &all))
	require.Len(t, all, 2)
	require.Equal(t, "(other)", all[0].Destination)
	require.Equal(t, "web-0", all[1].Destination)
	out.Reset()
	require.NoError(t, writeStat(&out, rows))
	require.Contains(t, out.String(), "\n(other)  ")
}

func TestEndpoints(t *testing.T) {
	p := newTapped(t, ours)
	r := try(t, "endpoints", p.addr)
	require.NoError(t, r.err)
	require.Equal(t, ""+
		"TARGET          ADDRESS      POD    STATE    LATENCY  OPEN  PICKS  REASON\n"+
		"web.default:80  10.0.0.1:80  web-0  ready    12ms     1     42     -\n"+
		"web.default:80  10.0.0.2:80  -      ejected  -        1     42     7 of 10 failed\n", r.out)
	require.Contains(t, try(t, "endpoints", "-o", "wide", p.addr).out, "zone:a]")

	nothing := vacant(t)
	r = try(t, "endpoints", "-o", "json", p.addr, nothing)
	require.ErrorContains(t, r.err, nothing+": ")
	var all []endpoint
	require.NoError(t, json.Unmarshal([]byte(r.out), &all))
	require.Len(t, all, 2)
	require.Equal(t, p.addr, all[0].From)

	require.ErrorContains(t, try(t, "endpoints", newTapped(t, linkerds).addr).err, "has no tap")
	bare := newTapped(t, func(to *grpc.Server, reg *tap.Registry) { tap.NewServer(reg).Register(to) })
	require.ErrorContains(t, try(t, "endpoints", bare.addr).err, "tap.WithDescribe")
}

// A process may describe more endpoints than fit into 4 MiB, the default limit of gRPC.
func TestManyEndpoints(t *testing.T) {
	t.Parallel()
	const n = 10_000
	p := newTapped(t, func(to *grpc.Server, reg *tap.Registry) {
		tap.NewServer(reg, tap.WithDescribe(func() layer.Node {
			all := layer.Node{Name: "balance", Children: make([]layer.Node, n)}
			for i := range all.Children {
				all.Children[i] = layer.Node{Name: "endpoint", State: layer.State{
					{Key: "addr", Value: "10.0.0.1:80"}, {Key: "labels", Value: strings.Repeat("x", 500)},
				}}
			}
			return all
		})).Register(to)
	})
	r := try(t, "endpoints", p.addr)
	require.NoError(t, r.err)
	require.Equal(t, n+1, strings.Count(r.out, "\n"))
}

func TestProfile(t *testing.T) {
	t.Parallel()
	for _, serve := range []serving{ours, linkerds} {
		p := newTapped(t, serve)
		r := p.until(t, func(r result) bool { return strings.Count(r.out, "pathRegex") == 3 }, "profile", "--path", "/seen")
		require.NoError(t, r.err)
		require.Contains(t, r.out, "name: web.default\n")
		set, err := file.Parse("seen.yaml", []byte(r.out))
		require.NoError(t, err)
		require.Empty(t, set.Warnings)
		require.Equal(t, 3, strings.Count(r.out, "pathRegex"))
		const nothing = "no request for a service by name in "
		r = p.until(t, func(r result) bool { return strings.Contains(fmt.Sprint(r.err), nothing) }, "profile", "--path", "/nothing")
		require.ErrorContains(t, r.err, nothing)
	}
}

func TestCheck(t *testing.T) {
	r := newTapped(t, ours).with(t, "check")
	require.NoError(t, r.err)
	require.Equal(t, 6, strings.Count(r.out, "√ "), r.out)
	require.Contains(t, r.out, "Status check results are √\n")

	p := newTapped(t, linkerds)
	r = try(t, "check", "--wait", "50ms", p.addr)
	require.NoError(t, r.err, "what is missing one can do without")
	require.Contains(t, r.out, "‼ it serves gotower's tap as well\n    it has linkerd's tap only\n    tap and top work")
	require.Contains(t, r.out, "‼ it receives requests\n    none in 50ms\n    Send one. If it is not shown")
	require.Contains(t, r.out, "Status check results are √ with 3 warnings\n")

	r = try(t, "check", vacant(t), p.addr, "--wait", "50ms")
	require.ErrorIs(t, r.err, errUnfit)
	require.Contains(t, r.out, "× the address accepts connections\n")
	require.Contains(t, r.out, "√ it serves tap to this client\n", "the other is looked at as well")
	require.Contains(t, r.out, "Status check results are ×\n")
}

// check and tap report a process that has its maximum of watchers.
func TestCapacityReached(t *testing.T) {
	t.Parallel()
	full := newTapped(t, func(to *grpc.Server, _ *tap.Registry) {
		reg := tap.NewRegistry(tap.WithCapacity(1, 0))
		tap.NewServer(reg).Register(to)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for t.Context().Err() == nil { // a check below may be quicker, and have the only seat
				for range reg.Watch(t.Context(), nil) {
				}
			}
		}()
		t.Cleanup(func() { <-done })
	})
	require.Eventually(t, func() bool {
		return strings.Contains(try(t, "check", "--wait", "10ms", full.addr).out, "× it accepts another watcher\n    ")
	}, waits, 100*time.Millisecond)
	r := full.until(t, func(r result) bool { return r.warnings != "" }, "tap")
	require.Contains(t, r.warnings, "The process has its maximum of watchers")
}

// Errors have advice for the user.
func TestErrorAdvice(t *testing.T) {
	nothing := vacant(t)
	serve := func(srv interface{ Serve(net.Listener) error }) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = srv.Serve(l)
		}()
		t.Cleanup(func() {
			l.Close()
			if s, ok := srv.(*grpc.Server); ok {
				s.Stop()
			} else if s, ok := srv.(*http.Server); ok {
				s.Close()
			}
			<-done
		})
		return l.Addr().String()
	}
	bare := serve(grpc.NewServer())
	web := serve(&http.Server{Handler: http.NotFoundHandler()})
	refusing := grpc.NewServer(grpc.StreamInterceptor(func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
		return status.Error(codes.Unauthenticated, "10.0.0.9 is not on this machine")
	}))
	tap.NewServer(nil).Register(refusing)
	remote := serve(refusing)
	p := newTapped(t, func(to *grpc.Server, _ *tap.Registry) { tap.NewServer(new(tap.Registry)).Register(to) })
	for _, command := range []string{"tap", "top", "stat", "profile"} {
		for target, want := range map[string]string{
			nothing: "connect: connection refused. No server accepts connections",
			bare:    "The gRPC server has no tap",
			web:     "The server does not speak gRPC",
			remote:  "10.0.0.9 is not on this machine. Without TLS, tap serves",
		} {
			err := try(t, command, target).err
			require.ErrorContains(t, err, target+": ", command)
			require.ErrorContains(t, err, want, command)
			require.NotContains(t, err.Error(), "rpc error", "what only gRPC wants to know")
		}
	}
	for args, want := range map[string]string{
		"--body 7":                "Omit --body",
		"--header authorization=": "Match its presence (--header NAME)",
	} {
		r := try(t, append(append([]string{"tap"}, strings.Fields(args)...), p.addr)...)
		require.ErrorContains(t, r.err, want)
		require.Empty(t, r.warnings, "said once")
	}
}

func TestUsage(t *testing.T) {
	for text, args := range map[string][]string{
		"no command":                         {},
		`"nope" is not a command`:            {"nope"},
		"-o yaml: no such":                   {"tap", "-o", "yaml"},
		"-o xml: no such":                    {"top", "-o", "xml"},
		"-o jsonpathx=a: no such":            {"tap", "-o", "jsonpathx=a"},
		"-o jsonpath needs a template":       {"tap", "-o", "jsonpath"},
		"-o jsonpath needs a template:":      {"tap", "-o", "jsonpath="},
		"-o jsonpath={}: no such":            {"stat", "-o", "jsonpath={}"},
		"at character 14, in {.nope}: ":      {"tap", "-o", "jsonpath={.source.ip} {.nope}"},
		"-o wide: no such":                   {"stat", "-o", "wide"},
		"-o csv: no such":                    {"endpoints", "-o", "csv"},
		`--to "web" must be`:                 {"tap", "--to", "web"},
		"flag provided but":                  {"tap", "--nope"},
		"invalid value \"x\"":                {"tap", "--for", "x"},
		`--header "=a" must be`:              {"top", "--header", "=a"},
		`--status "abc" must be`:             {"tap", "--status", "abc"},
		`--status "500-400" must be`:         {"tap", "--status", "500-400"},
		"--status 500: there can be":         {"tap", "--status", "404", "--status", "500"},
		"--sample 2: it must be":             {"tap", "--sample", "2"},
		"--sample NaN: it must be":           {"tap", "--sample", "NaN"},
		"--max-rps 0: it must be":            {"tap", "--max-rps", "0"},
		"--every 1ms: it must be":            {"top", "--every", "1ms"},
		"--for 0s: must be positive":         {"stat", "--for", "0s"},
		"--for -1s: must be positive":        {"profile", "--for", "-1s"},
		"--for -2s: must be positive":        {"tap", "--for", "-2s"},
		"--for -3s: must be positive":        {"top", "--for", "-3s"},
		"--for -4s: must be positive":        {"top", "--once", "--for", "-4s"},
		"--slower -1s: must be positive":     {"tap", "--slower", "-1s"},
		"--wait 0s: must be positive":        {"check", "--wait", "0s"},
		`"localhost" is not a target: must`:  {"top", "localhost"},
		`"[::1]:" is not a target: must`:     {"tap", "[::1]:"},
		`"[::1]:65536" is not a target: m`:   {"stat", "[::1]:65536"},
		`"[::1]:tap?" is not a target: must`: {"check", "[::1]:tap?"},
	} {
		r := try(t, args...)
		require.ErrorContains(t, r.err, text)
		require.ErrorAs(t, r.err, new(usageError), text)
	}
}

func TestHelp(t *testing.T) {
	r := try(t, "help")
	require.ErrorIs(t, r.err, flag.ErrHelp)
	for _, c := range commands() {
		require.Contains(t, r.out, "tapctl "+c.name)
		for _, args := range [][]string{{c.name, "--help"}, {"help", c.name}} {
			h := try(t, args...)
			require.ErrorIs(t, h.err, flag.ErrHelp)
			require.Contains(t, h.out, c.does)
			require.Contains(t, h.out, c.example)
		}
	}
	require.Contains(t, try(t, "tap", "--help").out, "  --path prefix ")
	readme, err := os.ReadFile(filepath.Join("README.md"))
	require.NoError(t, err)
	for _, c := range commands() {
		require.Contains(t, string(readme), fmt.Sprintf("tapctl %-9s", c.name))
	}
}

func TestStatusFlag(t *testing.T) {
	m, err := (&responses{status: []string{"5xx", "Unavailable", "deadlineexceeded"}}).match()
	require.NoError(t, err)
	require.EqualValues(t, 500, m.GetMinStatus())
	require.EqualValues(t, 599, m.GetMaxStatus())
	require.Equal(t, []uint32{uint32(codes.Unavailable), uint32(codes.DeadlineExceeded)}, m.GetGrpcStatus())
	lo, hi, err := httpStatus("400-499")
	require.NoError(t, err)
	require.Equal(t, [2]uint32{400, 499}, [2]uint32{lo, hi})
	m, err = (&responses{}).match()
	require.NoError(t, err)
	require.Nil(t, m)
}
