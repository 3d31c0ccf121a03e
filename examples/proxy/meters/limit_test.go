package meters_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/meters"
)

// When an error's series expires, another target can take its place.
func TestErrorsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		count := m.TCPErrors(meters.Outbound)
		addr := func(i int) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i+1)) }
		for i := range 1000 {
			count(addr(i), syscall.ECONNREFUSED)
		}
		const series, often = "outbound_tcp_errors_total", `outbound_tcp_errors_total{error="i/o",target_addr="10.0.0.1:1"} `
		for range 6 {
			time.Sleep(20 * time.Second)
			count(addr(0), syscall.ECONNREFUSED)
			lines(t, m, series)
		}
		count(addr(5000), syscall.ECONNREFUSED)
		require.ElementsMatch(t, []string{often + "7", `outbound_tcp_errors_total{error="i/o",target_addr="10.0.0.1:5001"} 1`}, lines(t, m, series))
		time.Sleep(59 * time.Second)
		require.Len(t, lines(t, m, series), 2)
		time.Sleep(time.Second)
		require.Empty(t, lines(t, m, series))
	})
}

// byDefault returns the permit of a default policy.
func byDefault(policy string) *meters.Permit {
	r := meters.DefaultResource(policy)
	return &meters.Permit{Server: r, Route: meters.DefaultResource("default"), Authz: r}
}

func TestAuthz(t *testing.T) {
	m := meters.New(meters.Config{})
	permit := byDefault("all-authenticated")
	web := netip.MustParseAddrPort("10.0.0.1:80")
	count := m.Authz("http")
	count(meters.Decision{Target: web, Client: meters.Client{Secure: true, ID: "client.test"}, Permit: permit, Outcome: meters.Allowed})
	count(meters.Decision{Target: web, Permit: permit})
	count(meters.Decision{Target: web, Permit: permit})
	m.Authz("tcp")(meters.Decision{Target: web, Permit: byDefault("deny")})
	const (
		target  = `srv_port="80",target_addr="10.0.0.1:80",target_ip="10.0.0.1",target_port="80",`
		inClear = `no_tls_reason="no_tls_from_remote",`
		route   = `route_group="",route_kind="default",route_name="default",`
		srv     = `srv_group="",srv_kind="default",srv_name=`
	)
	require.Equal(t, []string{
		`inbound_http_authz_allow_total{authz_group="",authz_kind="default",authz_name="all-authenticated",client_id="client.test",` +
			route + srv + `"all-authenticated",` + target + `tls="true"} 1`,
		`inbound_http_authz_deny_total{` + inClear + route + srv + `"all-authenticated",` + target + `tls="no_identity"} 2`,
	}, lines(t, m, "inbound_http_authz"))
	require.Equal(t, []string{`inbound_tcp_authz_deny_total{` + inClear + srv + `"deny",` + target + `tls="no_identity"} 1`},
		lines(t, m, "inbound_tcp_authz"))
	require.Nil(t, m.Authz("udp"))

	for i := range 2000 {
		count(meters.Decision{Target: web, Client: meters.Client{Secure: true, ID: fmt.Sprintf("client-%d.test", i)}, Permit: permit, Outcome: meters.Allowed})
	}
	require.LessOrEqual(t, len(lines(t, m, "inbound_http_authz_allow_total")), 1001)
	require.Contains(t, scrape(t, m), `authz_name="all-authenticated",client_id="",`+route+srv+`"all-authenticated",tls="true"} 1002`)
}

// The labels are those of linkerd's proxy with a policy controller.
func TestAuthzOfPolicies(t *testing.T) {
	m := meters.New(meters.Config{})
	web := netip.MustParseAddrPort("10.0.0.1:80")
	permit := &meters.Permit{
		Server:    meters.Resource{Group: "policy.linkerd.io", Kind: "server", Name: "web"},
		Route:     meters.Resource{Group: "gateway.networking.k8s.io", Kind: "HTTPRoute", Name: "api"},
		Authz:     meters.Resource{Group: "policy.linkerd.io", Kind: "authorizationpolicy", Name: "mesh"},
		RateLimit: meters.Resource{Group: "policy.linkerd.io", Kind: "HTTPLocalRateLimitPolicy", Name: "limit"}, Scope: "total",
	}
	for protocol, outcomes := range map[string][]meters.Outcome{
		"http": {meters.Allowed, meters.Denied, meters.NoRoute, meters.RateLimited}, "tcp": {meters.Allowed, meters.Denied, meters.Terminated},
	} {
		for _, o := range outcomes {
			m.Authz(protocol)(meters.Decision{Target: web, Permit: permit, Outcome: o})
		}
	}
	const (
		reason = `{no_tls_reason="no_tls_from_remote",`
		target = `srv_group="policy.linkerd.io",srv_kind="server",srv_name="web",srv_port="80",target_addr="10.0.0.1:80",target_ip="10.0.0.1",target_port="80",tls="no_identity"} `
		route  = `route_group="gateway.networking.k8s.io",route_kind="HTTPRoute",route_name="api",`
		authz  = `{authz_group="policy.linkerd.io",authz_kind="authorizationpolicy",authz_name="mesh",no_tls_reason="no_tls_from_remote",`
	)
	require.ElementsMatch(t, []string{
		`inbound_http_authz_allow_total` + authz + route + target + "1", `inbound_http_authz_deny_total` + reason + route + target + "1",
		`inbound_http_route_not_found_total` + reason + target + "1",
		`inbound_http_local_ratelimit_total` + reason + `ratelimit_group="policy.linkerd.io",ratelimit_kind="HTTPLocalRateLimitPolicy",ratelimit_name="limit",ratelimit_scope="total",` + target + "1",
	}, lines(t, m, "inbound_http_"))
	require.ElementsMatch(t, []string{
		`inbound_tcp_authz_allow_total` + authz + target + "1", `inbound_tcp_authz_deny_total` + reason + target + "1",
		`inbound_tcp_authz_terminate_total` + reason + target + "1",
	}, lines(t, m, "inbound_tcp_"))
}

// The gauge for a client's connections is shown as long as one is open.
func TestClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		meterOf := m.Clients(meters.Inbound)
		web := netip.MustParseAddrPort("10.0.0.1:80")
		open := func(c meters.Client) net.Conn {
			ours, theirs := net.Pipe()
			t.Cleanup(func() { theirs.Close() })
			return meterOf(web, c, meters.DefaultResource("deny")).Conn(ours)
		}
		first := open(meters.Client{Secure: true, ID: "client.test"})
		time.Sleep(30 * time.Second)
		second := open(meters.Client{Secure: true, ID: "client.test"})
		require.NoError(t, second.Close())
		for _, c := range []meters.Client{{}, {Skipped: true}, {Passed: true}, {Secure: true}} {
			require.NoError(t, open(c).Close())
		}
		const target = `,peer="src",srv_group="",srv_kind="default",srv_name="deny",srv_port="80",target_addr="10.0.0.1:80",target_ip="10.0.0.1",target_port="80",tls=`
		twice := `tcp_open_total{client_id="client.test",direction="inbound"` + target + `"true"} 2`
		require.ElementsMatch(t, []string{
			twice,
			`tcp_open_total{client_id="",direction="inbound"` + target + `"true"} 1`,
			`tcp_open_total{direction="inbound",no_tls_reason="no_tls_from_remote"` + target + `"no_identity"} 1`,
			`tcp_open_total{direction="inbound",no_tls_reason="port_skipped"` + target + `"no_identity"} 1`,
			`tcp_open_total{direction="inbound"` + target + `"opaque"} 1`,
		}, lines(t, m, "tcp_open_total"))
		time.Sleep(time.Hour)
		require.Empty(t, lines(t, m, "tcp_open_total"))
		require.Equal(t, []string{"1"}, values(t, m, "tcp_open_connections"))
		require.NoError(t, first.Close())
		time.Sleep(59 * time.Second)
		require.Equal(t, []string{"0"}, values(t, m, "tcp_open_connections"))
		time.Sleep(time.Minute)
		require.Empty(t, lines(t, m, "tcp_"))
		for i := range 2000 {
			require.NoError(t, open(meters.Client{Secure: true, ID: fmt.Sprintf("client-%d.test", i)}).Close())
		}
		require.Len(t, lines(t, m, "tcp_open_total"), 1001)
	})
}

// Series expire and are bound again while they are counted, with various retention times.
func TestSeriesInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, retain := range []time.Duration{1, time.Millisecond, time.Minute} {
			m, permit := meters.New(meters.Config{RetainIdle: retain}), byDefault("deny")
			errs, authz, clients := m.TCPErrors(meters.Inbound), m.Authz("tcp"), m.Clients(meters.Inbound)
			var counting sync.WaitGroup
			for range 8 {
				counting.Go(func() {
					for i := range 300 {
						addr := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i%7+1))
						errs(addr, syscall.ECONNREFUSED)
						authz(meters.Decision{Target: addr, Permit: permit})
						ours, theirs := net.Pipe()
						conn := clients(addr, meters.Client{}, permit.Server).Conn(ours)
						time.Sleep(time.Duration(i) * time.Millisecond)
						_ = conn.Close()
						_ = theirs.Close()
					}
				})
			}
			counting.Wait()
			sum := 0
			for _, line := range lines(t, m, "tcp_open_connections") {
				require.True(t, strings.HasSuffix(line, " 0"), line)
				sum++
			}
			require.NotZero(t, sum)
			time.Sleep(retain)
			for _, name := range []string{"tcp_", "inbound_tcp_errors", "inbound_tcp_authz"} {
				require.Empty(t, lines(t, m, name))
			}
		}
	})
}

func BenchmarkAuthz(b *testing.B) {
	count := meters.New(meters.Config{}).Authz("http")
	d := meters.Decision{
		Target: netip.MustParseAddrPort("10.0.0.1:80"), Client: meters.Client{Secure: true, ID: "client.test"},
		Permit: byDefault("all-authenticated"), Outcome: meters.Allowed,
	}
	b.ReportAllocs()
	for b.Loop() {
		count(d)
	}
}
