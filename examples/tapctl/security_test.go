package main

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/gotower/gotower/examples/tapctl/trust/trusttest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
	"github.com/gotower/gotower/tap"
)

const (
	web    = "web.default.serviceaccount.identity.linkerd.cluster.local"
	tapper = "tap.linkerd-viz.serviceaccount.identity.linkerd.cluster.local"
	spiffe = "spiffe://cluster.local/ns/default/sa/web"
)

// watchedBy has tap's own server for clients with the identity name.
func watchedBy(name string) serving {
	return func(to *grpc.Server, reg *tap.Registry) {
		tap.NewServer(reg, tap.WithAllowedIdentities(name), tap.WithDescribe(func() layer.Node {
			return layer.Node{Name: "balance", Children: []layer.Node{{
				Name: "endpoint", State: layer.State{{Key: "addr", Value: "10.0.0.1:80"}},
			}}}
		})).Register(to)
	}
}

// mesh is TLS as proxies use it: a client without a certificate can connect, and tap
// rejects it.
func mesh(t *testing.T, ca *trusttest.CA, names ...string) *tls.Config {
	t.Helper()
	id, err := identity.Static(ca.Issue(t, names...), ca.Pool)
	require.NoError(t, err)
	return id.Server()
}

// silent is TLS that negotiates no protocol, like that of linkerd's proxy.
type silent struct {
	credentials.TransportCredentials
	cfg *tls.Config
}

func (s silent) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Server(raw, s.cfg)
	if err := conn.Handshake(); err != nil {
		raw.Close()
		return nil, nil, err
	}
	return conn, credentials.TLSInfo{
		State: conn.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

func (s silent) Clone() credentials.TransportCredentials { return s }

func over(cfg *tls.Config) grpc.ServerOption { return grpc.Creds(credentials.NewTLS(cfg)) }

// files are a certificate for name, and the flags for it.
func files(t *testing.T, ca, issuer *trusttest.CA, name string) []string {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	trusttest.Write(t, cert, key, issuer.Issue(t, name))
	return []string{"--cacert", ca.File, "--cert", cert, "--key", key}
}

func join(all ...[]string) []string {
	var args []string
	for _, one := range all {
		args = append(args, one...)
	}
	return args
}

// briefly is each command, so that it ends soon.
var briefly = map[string][]string{
	"tap":       {"tap", "--for", "300ms"},
	"top":       {"top", "--once", "--for", "300ms"},
	"check":     {"check"},
	"stat":      {"stat", "--for", "300ms"},
	"endpoints": {"endpoints"},
	"profile":   {"profile", "--for", "300ms"},
}

// Every command watches by mutual TLS.
func TestCommandsOverTLS(t *testing.T) {
	t.Parallel()
	ca := trusttest.New(t)
	me := files(t, ca, ca, tapper)
	p := newTapped(t, watchedBy(tapper), over(mesh(t, ca, web, spiffe)))
	for name, args := range briefly {
		t.Run(name, func(t *testing.T) {
			args = join(args, me, []string{"--server-identity", web})
			do := p.with
			if slices.Contains(args, "--for") {
				do = func(t *testing.T, args ...string) result { return p.until(t, prints(""), args...) }
			}
			r := do(t, args...)
			require.NoError(t, r.err, r.out)
			require.NotEmpty(t, r.out)
			require.Empty(t, r.warnings)
		})
	}
	linkerds := silent{credentials.NewTLS(nil), mesh(t, ca, web)}
	for name, tt := range map[string]struct {
		server *tapped
		flags  []string
	}{
		"a SPIFFE ID": {p, []string{"--server-identity", spiffe}},
		"for one":     {p, []string{"--server-identity", p.addr + "=" + spiffe, "--server-identity", "nobody"}},
		"no protocol": {newTapped(t, watchedBy(tapper), grpc.Creds(linkerds)), []string{"--server-identity", web}},
		"a host":      {newTapped(t, watchedBy(tapper), over(mesh(t, ca, "any", "127.0.0.1"))), nil},
		"a name":      {p, []string{"--servername", web}},
		"asked for":   {p, []string{"--servername", "front.default", "--server-identity", web}},
	} {
		t.Run(name, func(t *testing.T) {
			r := tt.server.with(t, join([]string{"tap", "--limit", "2"}, me, tt.flags)...)
			require.NoError(t, r.err)
			require.Contains(t, r.out, "req id=")
		})
	}
	r := p.with(t, join([]string{"check"}, me, []string{"--server-identity", web})...)
	require.Contains(t, r.out, "√ the address accepts connections\n√ its identity is "+web+"\n√ it serves tap to this client\n")
	require.Contains(t, r.out, "Status check results are √\n")
}

// Targets by TLS and in clear are watched together.
func TestTargetsMixedTLS(t *testing.T) {
	ca := trusttest.New(t)
	me := files(t, ca, ca, tapper)
	secure, plain := newTapped(t, watchedBy(tapper), over(mesh(t, ca, web))), newTapped(t, ours)
	other := newTapped(t, watchedBy(tapper), over(mesh(t, ca, "db.default")))
	args := join([]string{"endpoints", "-o", "json"}, me)
	r := try(t, join(args, []string{
		"--server-identity", web, "--server-identity", other.addr + "=db.default", secure.addr, "https://" + other.addr, "http://" + plain.addr,
	})...)
	require.NoError(t, r.err)
	for _, from := range []string{secure.addr, "https://" + other.addr, "http://" + plain.addr} {
		require.Contains(t, r.out, `"from": "`+from+`"`)
	}
	r = try(t, join(args, []string{"--server-identity", web, secure.addr, plain.addr, other.addr})...)
	require.ErrorContains(t, r.err, plain.addr+": it ", "with the flags it is by TLS")
	require.ErrorContains(t, r.err, other.addr+": expected "+web+", seen db.default. If this is the intended process: --server-identity db.default")
	require.Contains(t, r.out, `"from": "`+secure.addr+`"`)

	r = try(t, "endpoints", "http://"+plain.addr)
	require.NoError(t, r.err)
}

// Each command and check report errors of TLS with advice.
func TestTLSErrorAdvice(t *testing.T) {
	t.Parallel()
	ca, foreign := trusttest.New(t), trusttest.New(t)
	me := files(t, ca, ca, tapper)
	strict := mesh(t, ca, web)
	strict.ClientAuth = tls.RequireAndVerifyClientCert
	expired := mesh(t, ca, web)
	old := ca.Expired(t, web)
	expired.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &old, nil }

	proxy := newTapped(t, watchedBy(tapper), over(mesh(t, ca, web))).addr
	required := newTapped(t, watchedBy(tapper), over(strict)).addr
	stale := newTapped(t, watchedBy(tapper), over(expired)).addr
	wrong := mesh(t, ca, web)
	forClients := ca.ForClients(t, web)
	wrong.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &forClients, nil }
	clients := newTapped(t, watchedBy(tapper), over(wrong)).addr
	elsewhere := newTapped(t, watchedBy(tapper), over(mesh(t, foreign, web))).addr
	plain := newTapped(t, ours).addr
	identity := []string{"--server-identity", web}
	for _, tt := range []struct {
		name    string
		addr    string
		flags   []string
		failing string // line of check
		says    []string
	}{
		{"unknown authority", elsewhere, join(me, identity), "its identity is " + web, []string{"signed by unknown authority", "--cacert FILE"}},
		{"wrong name", proxy, join(me, []string{"--server-identity", "db.default"}), "its identity is db.default", []string{
			"expected db.default, seen " + web, "If this is the intended process: --server-identity " + web,
		}},
		{"wrong host", proxy, me, "its identity is 127.0.0.1", []string{"expected 127.0.0.1, seen " + web, "--server-identity " + web}},
		{"wrong name that is asked for", proxy, join(me, []string{"--servername", "db.default"}), "its identity is db.default", []string{
			"expected db.default, seen " + web, "--server-identity " + web,
		}},
		{"for clients", clients, join(me, identity), "its identity is " + web, []string{"incompatible key usage", "must be issued again"}},
		{"expired", stale, join(me, identity), "its identity is " + web, []string{"expired", "Renew the server's certificate"}},
		{"plaintext port", plain, join(me, identity), "its identity is " + web, []string{"http://host:port"}},
		{"certificate required", required, []string{"--cacert", ca.File, "--server-identity", web}, "its identity is " + web, []string{"--cert FILE"}},
		{"certificate wanted", proxy, []string{"--cacert", ca.File, "--server-identity", web}, "it serves tap to this client", []string{
			"no verified certificate", "--cert FILE and --key FILE",
		}},
		{"certificate of another authority", proxy, join(files(t, ca, foreign, tapper), identity), "its identity is " + web, []string{
			"a trusted issuer",
		}},
		{"identity not allowed", proxy, join(files(t, ca, ca, "bot.default"), identity), "it serves tap to this client", []string{
			`the client ["bot.default"] may not watch`, "LINKERD2_PROXY_TAP_SVC_NAME",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for name, args := range briefly {
				r := try(t, join(args, tt.flags, []string{tt.addr})...)
				require.Error(t, r.err, name)
				said := r.err.Error()
				if name == "check" {
					require.ErrorIs(t, r.err, errUnfit)
					require.Contains(t, r.out, "× "+tt.failing+"\n")
					said = r.out
				} else {
					require.ErrorContains(t, r.err, tt.addr+": ", name)
				}
				for _, want := range tt.says {
					require.Contains(t, said, want, name)
				}
				require.NotContains(t, said, "rpc error", name)
				require.NotContains(t, said, "handshake failed: ", name)
				require.NotContains(t, said, "No server accepts connections", name)
			}
		})
	}
	r := try(t, "check", required)
	require.ErrorIs(t, r.err, errUnfit)
	require.Contains(t, r.out, "× it serves tap to this client\n    it speaks TLS\n    Use TLS: --cacert FILE")
	require.ErrorContains(t, try(t, "top", required).err, "If it uses TLS: --cacert FILE")
}

// The certificate files are read before a process is called.
func TestTLSFilesAreReadFirst(t *testing.T) {
	ca := trusttest.New(t)
	for name, args := range briefly {
		r := try(t, join(args, []string{"--cacert", filepath.Join(t.TempDir(), "nothing.pem"), vacant(t)})...)
		require.ErrorContains(t, r.err, "nothing.pem: no such file or directory. --cacert is", name)
		require.NotErrorIs(t, r.err, errUnfit)
		require.Empty(t, r.out)

		old := filepath.Join(t.TempDir(), "old.pem")
		trusttest.Write(t, old, old, ca.Expired(t, tapper))
		r = try(t, join(args, []string{"--cacert", ca.File, "--cert", old, vacant(t)})...)
		require.ErrorContains(t, r.err, old+": it expired at ", name)
	}
	r := try(t, "tap", "--for", "10ms", "--cacert", "/nothing", "http://"+vacant(t))
	require.ErrorContains(t, r.err, "refused", "there is no need for it")
}

func TestTLSUsage(t *testing.T) {
	for want, args := range map[string]string{
		"a key without a certificate. --cert is":            "--key k",
		"needs trust anchors. Pass its trust anchors":       "--server-identity web",
		`--server-identity "a=" must be`:                    "--cacert c --server-identity a=",
		"there can be one for all targets":                  "--cacert c --server-identity a --server-identity b",
		"and one for each; https://127.0.0.1:1 has a and b": "--cacert c --server-identity 127.0.0.1:1=a --server-identity https://127.0.0.1:1=b https://127.0.0.1:1",
		"and one for each; 127.0.0.1:1 has a and b":         "--cacert c --server-identity 127.0.0.1:1=a --server-identity 127.0.0.1:1=b 127.0.0.1:1",
		"127.0.0.1:1 is not a target with TLS":              "--cacert c --server-identity 127.0.0.1:1=a",
		"127.0.0.1:2 is not a target with TLS":              "--cacert c --server-identity 127.0.0.1:2=a http://127.0.0.1:2",
		`"https://web" is not a target`:                     "https://web",
		`"http://web:80/tap" is not a target`:               "http://web:80/tap",
	} {
		r := try(t, append([]string{"check"}, strings.Fields(args)...)...)
		require.ErrorContains(t, r.err, want)
		require.ErrorAs(t, r.err, new(usageError))
	}
}

// A target that is written twice is counted once.
func TestTargetsDuplicate(t *testing.T) {
	var s security
	all, err := s.targets([]string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:1", "https://10.0.0.1:1"})
	require.NoError(t, err)
	require.Equal(t, []string{"10.0.0.1:1", "10.0.0.2:1", "https://10.0.0.1:1"}, terminal{targets: all}.names())
}

func TestTargets(t *testing.T) {
	for _, tt := range []struct {
		written, serverName, identity string
		name                          string // that is asked for
		tls                           bool
	}{
		{"http://10.0.0.1:4190", "", "", "", false},
		{"https://10.0.0.1:4190", "", "", "10.0.0.1", true},
		{"web.default:4190", "", spiffe, "web.default", true},
		{"web.default:4190", "other", spiffe, "other", true},
		{"web.default:4190", "", web, "", true}, // the identity itself
		{":4190", "other", "", "other", true},
		{"https://:4190", "", "", "localhost", true},
		{"[::1]:4190", "", "", "", false},
	} {
		s := security{serverName: tt.serverName}
		if tt.identity != "" {
			s.identities, s.files.Anchors = []string{tt.identity}, "ca.pem"
		}
		all, err := s.targets([]string{tt.written})
		require.NoError(t, err)
		require.Equal(t, tt.written, all[0].name)
		require.Equal(t, tt.tls, all[0].tls, tt.written)
		if tt.tls {
			require.Equal(t, tt.name, s.server(all[0]).Name, tt.written)
			require.Equal(t, tt.identity, s.server(all[0]).Identity)
		}
	}
}
