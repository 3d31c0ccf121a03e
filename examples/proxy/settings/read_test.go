package settings_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// from looks up variables by their names without a prefix.
func from(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, prefix := range []string{settings.Prefix, settings.OwnPrefix, ""} {
			if bare, ok := strings.CutPrefix(name, prefix); ok {
				if v, ok := vars[bare]; ok {
					return v, true
				}
			}
		}
		return "", false
	}
}

// least returns the required variables and more.
func least(more ...string) map[string]string {
	vars := map[string]string{"DESTINATION_SVC_ADDR": "127.0.0.1:8086"}
	for i := 0; i < len(more); i += 2 {
		vars[more[i]] = more[i+1]
	}
	return vars
}

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// The defaults are linkerd's, except for tap: without an identity it uses cleartext, and only
// clients on this machine may watch.
func TestDefaultsOfLinkerd(t *testing.T) {
	s, err := settings.Read(from(least()))
	require.NoError(t, err)
	require.Empty(t, s.Warnings)
	http2 := settings.HTTP2{InitialStreamWindowSize: 65535, InitialConnectionWindowSize: 1 << 20}
	require.Equal(t, settings.Settings{
		Outbound: settings.Outbound{
			Listen: []netip.AddrPort{addr("127.0.0.1:4140")}, Server: http2,
			DetectTimeout: 10 * time.Second, OpaquePorts: settings.Ports{{25, 25}, {587, 587}, {3306, 3306}},
			MaxInFlight:   100_000,
			HTTPQueue:     settings.Queue{Capacity: 10_000, FailFast: 3 * time.Second},
			TCPQueue:      settings.Queue{Capacity: 10_000, FailFast: 3 * time.Second},
			Connect:       settings.Connect{Timeout: time.Second, Backoff: layer.Backoff{Min: 100 * time.Millisecond, Max: time.Minute, Jitter: 0.1}},
			Pool:          settings.Pool{MaxIdle: 10_000, Idle: 3 * time.Second},
			DiscoveryIdle: 5 * time.Second,
		},
		Inbound: settings.Inbound{
			Listen: addr("0.0.0.0:4143"), Server: http2,
			DetectTimeout: 10 * time.Second, MaxInFlight: 100_000, BodyIdle: time.Minute,
			HTTPQueue:     settings.Queue{Capacity: 10_000, FailFast: time.Second},
			Connect:       settings.Connect{Timeout: 300 * time.Millisecond, Backoff: layer.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second, Jitter: 0.1}},
			Pool:          settings.Pool{MaxIdle: 10_000, Idle: 3 * time.Second},
			DiscoveryIdle: 90 * time.Second, DefaultPolicy: settings.AllUnauthenticated,
		},
		Control: settings.Control{
			Destination: settings.Controller{Addr: "127.0.0.1:8086"}, ProfileInitial: 500 * time.Millisecond,
			ProfileSuffixes: settings.Suffixes{"svc.cluster.local"}, GetSuffixes: settings.Suffixes{""},
			Connect:         settings.Connect{Timeout: 500 * time.Millisecond, Backoff: layer.Backoff{Min: 100 * time.Millisecond, Max: time.Minute, Jitter: 0.1}},
			DispatchTimeout: 5 * time.Second,
		},
		Tap: settings.Tap{Listen: addr("127.0.0.1:4190")}, Admin: settings.Admin{Listen: addr("127.0.0.1:4191")},
		Shutdown: settings.Shutdown{Grace: 2 * time.Minute},
		Log:      settings.Log{Filter: "warn,linkerd=info,hickory=error"},
		Metrics:  settings.Metrics{RetainIdle: 10 * time.Minute},
	}, s)
}

// TestAsInjected reads the variables that linkerd's injector sets, except the identity's.
func TestAsInjected(t *testing.T) {
	const networks = "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8"
	s, err := settings.Read(from(map[string]string{
		"LOG": "warn,linkerd=info,hickory=error,[{headers}]=off,[{request}]=off", "LOG_FORMAT": "plain",
		"DESTINATION_SVC_ADDR": "linkerd-dst-headless.linkerd.svc.cluster.local.:8086", "DESTINATION_CONTEXT": `{"ns":"emojivoto"}`,
		"DESTINATION_PROFILE_NETWORKS": networks, "POLICY_CLUSTER_NETWORKS": networks,
		"POLICY_SVC_ADDR": "linkerd-policy.linkerd.svc.cluster.local.:8090", "POLICY_WORKLOAD": `{"ns":"emojivoto","pod":"web-0"}`,
		"INBOUND_DEFAULT_POLICY": "cluster-unauthenticated",
		"OUTBOUND_LISTEN_ADDR":   "127.0.0.1:4140", "OUTBOUND_LISTEN_ADDRS": "127.0.0.1:4140,[::1]:4140",
		"INBOUND_LISTEN_ADDR": "[::]:4143", "CONTROL_LISTEN_ADDR": "[::]:4190", "ADMIN_LISTEN_ADDR": "[::]:4191",
		"CONTROL_STREAM_INITIAL_TIMEOUT": "3s", "CONTROL_STREAM_IDLE_TIMEOUT": "5m", "CONTROL_STREAM_LIFETIME": "1h",
		"INBOUND_CONNECT_TIMEOUT": "100ms", "OUTBOUND_CONNECT_TIMEOUT": "1000ms",
		"INBOUND_ACCEPT_KEEPALIVE": "10000ms", "OUTBOUND_CONNECT_USER_TIMEOUT": "30s",
		"INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL": "10s", "INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT": "3s",
		"INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION": "25,587,3306,4444,5432,6379,9300,11211",
		"INBOUND_IPS": "10.1.2.3,fd00::3", "INBOUND_PORTS": "8080,4191-4192",
		"DESTINATION_PROFILE_SUFFIXES": "svc.cluster.local.", "CORES": "1", "SHUTDOWN_ENDPOINT_ENABLED": "false",
		"OUTBOUND_METRICS_HOSTNAME_LABELS": "false", "NOBODY_KNOWS": "this",
	}))
	require.NoError(t, err)
	require.Equal(t, []netip.AddrPort{addr("127.0.0.1:4140"), addr("[::1]:4140")}, s.Outbound.Listen)
	require.Equal(t, settings.StreamLimits{Initial: 3 * time.Second, Idle: 5 * time.Minute, Lifetime: time.Hour}, s.Control.Streams)
	require.Equal(t, 10*time.Second, s.Inbound.Accept.KeepAlive)
	require.Equal(t, 30*time.Second, s.Outbound.Connect.Socket.UserTimeout)
	require.Equal(t, 3*time.Second, s.Inbound.Server.KeepAliveTimeout)
	require.True(t, s.Inbound.OpaquePorts.Contains(11211))
	require.True(t, s.Inbound.Ports.Contains(4192))
	require.Len(t, s.Inbound.IPs, 2)
	require.Equal(t, settings.ClusterUnauthenticated, s.Inbound.DefaultPolicy)
	require.Len(t, s.Policy.ClusterNetworks, 5)
	require.Equal(t, "linkerd-policy.linkerd.svc.cluster.local.:8090", s.Policy.Controller.Addr)
	require.JSONEq(t, `{"ns":"emojivoto","pod":"web-0"}`, s.Policy.Workload)
	require.Empty(t, s.Warnings)
	require.Equal(t, 1, s.Cores.Count(8))
}

func TestFallbackVariables(t *testing.T) {
	s, err := settings.Read(from(least(
		"INGRESS_MODE", "true", "TAP_SVC_NAME", "Tap.Linkerd.", "TAP_LABELS", "pod=web-0, ns=emojivoto",
		"OUTBOUND_DISPATCH_TIMEOUT", "7s", "INBOUND_ROUTER_MAX_IDLE_AGE", "60s",
		"OUTBOUND_CONNECT_EXP_BACKOFF_MIN", "5ms", "OUTBOUND_CONNECT_EXP_BACKOFF_MAX", "500ms",
		"HTTP2_INITIAL_STREAM_WINDOW_SIZE", "70000", "INBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE", "80000",
		"ORIGIN", "proxy-protocol", "INBOUND_ORIGIN", "fixed:127.0.0.1:8080",
		"DESTINATION_PROFILE_SUFFIXES", "", "DESTINATION_GET_SUFFIXES", ".",
		"CORES", "3", "CORES_MIN", "2", "LOG_FORMAT", "JSON", "ACCESS_LOG", "apache",
		"INBOUND_METRICS_AUTHORITY_LABELS", "unsafe",
	)))
	require.NoError(t, err)
	require.True(t, s.Outbound.Quiet, "in ingress mode")
	require.Equal(t, "tap.linkerd", s.Tap.Name)
	require.True(t, s.TapServed())
	require.Equal(t, addr("127.0.0.1:4190"), s.Tap.Listen, "in clear, for this machine alone")
	require.Equal(t, map[string]string{"pod": "web-0", "ns": "emojivoto"}, s.Tap.Labels)
	require.Equal(t, 7*time.Second, s.Outbound.HTTPQueue.FailFast, "the oldNames name")
	require.Equal(t, time.Minute, s.Inbound.DiscoveryIdle)
	require.Equal(t, 500*time.Millisecond, s.Control.Connect.Backoff.Max, "as outbound")
	require.EqualValues(t, 70000, s.Outbound.Server.InitialStreamWindowSize)
	require.EqualValues(t, 80000, s.Inbound.Server.InitialStreamWindowSize)
	require.Equal(t, settings.Origin{Kind: settings.ProxyProtocol}, s.Outbound.Origin)
	require.Equal(t, settings.Origin{Kind: settings.Fixed, Addr: addr("127.0.0.1:8080")}, s.Inbound.Origin)
	require.False(t, s.Control.ProfileSuffixes.Contains("web.svc.cluster.local"))
	require.True(t, s.Control.GetSuffixes.Contains("anything"))
	require.Equal(t, settings.Cores{Min: 2}, s.Cores)
	require.True(t, s.Log.JSON)
	require.Equal(t, settings.Apache, s.Log.Access)
	require.True(t, s.Inbound.AuthorityLabels)
}

func TestReadAllErrors(t *testing.T) {
	_, err := settings.Read(from(map[string]string{
		"OUTBOUND_LISTEN_ADDR": "localhost:80", "OUTBOUND_LISTEN_ADDRS": "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
		"OUTBOUND_HTTP_QUEUE_CAPACITY": "many", "OUTBOUND_HTTP_FAILFAST_TIMEOUT": "3", "OUTBOUND_CONNECT_TIMEOUT": "1.5s",
		"OUTBOUND_DISABLE_INFORMATIONAL_HEADERS": "yes", "OUTBOUND_CONNECT_EXP_BACKOFF_JITTER": "-1",
		"OUTBOUND_CONNECT_EXP_BACKOFF_MIN": "2m", "INBOUND_CONNECT_EXP_BACKOFF_MIN": "2m", "INBOUND_CONNECT_EXP_BACKOFF_MAX": "1m",
		"TAP_LABELS": "web", "DESTINATION_PROFILE_SUFFIXES": "a.example, *.example",
		"DESTINATION_PROFILE_NETWORKS": "10.0.0.0/8,10.0.0.0", "INBOUND_PORTS": "80,90-80", "INBOUND_IPS": "10.0.0.1, 10.0.0.2",
		"INBOUND_DEFAULT_POLICY": "audit", "POLICY_SVC_ADDR": "policy:8090", "ORIGIN": "fixed:127.0.0.1", "IDENTITY_DISABLED": "1", "LOG": "linkerd=loud",
		"CONTROL_STREAM_INITIAL_TIMEOUT": "3s", "CONTROL_STREAM_IDLE_TIMEOUT": "", "CONTROL_STREAM_LIFETIME": "2s",
		"DNS_MIN_TTL": "2s", "DNS_MAX_TTL": "1s", "ACCESS_LOG": "nginx", "INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE": "1",
		"HTTP2_INITIAL_CONNECTION_WINDOW_SIZE": "65534", "INBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE": "1",
		"SHUTDOWN_GRACE_PERIOD": "99999999999d", "TAP_SVC_NAME": "tap service", "OUTBOUND_TCP_LISTEN_BACKLOG": "0",
	}))
	const p = "LINKERD2_PROXY_"
	for _, problem := range []string{
		p + `DESTINATION_SVC_ADDR: is not set`,
		p + `OUTBOUND_LISTEN_ADDR="localhost:80": must be ip:port`,
		p + `OUTBOUND_LISTEN_ADDRS="127.0.0.1:1,127.0.0.1:2,127.0.0.1:3": must be one ip:port or two`,
		p + `OUTBOUND_HTTP_QUEUE_CAPACITY="many": must be a whole number`,
		p + `OUTBOUND_HTTP_FAILFAST_TIMEOUT="3": has no unit`,
		p + `OUTBOUND_CONNECT_TIMEOUT="1.5s": must be digits and a unit`,
		p + `OUTBOUND_DISABLE_INFORMATIONAL_HEADERS="yes": must be true or false`,
		p + `OUTBOUND_CONNECT_EXP_BACKOFF_JITTER="-1": must be a number from 0 to 100`,
		p + `OUTBOUND_CONNECT_EXP_BACKOFF_MIN: must be set together with LINKERD2_PROXY_OUTBOUND_CONNECT_EXP_BACKOFF_MAX`,
		p + `INBOUND_CONNECT_EXP_BACKOFF_*: backoff: max 1m0s must be at least min 2m0s`,
		p + `TAP_LABELS="web": "web" must be key=value`,
		p + `DESTINATION_PROFILE_SUFFIXES="a.example, *.example": "*.example" must be a DNS name`,
		p + `DESTINATION_PROFILE_NETWORKS="10.0.0.0/8,10.0.0.0": "10.0.0.0" must be a network`,
		p + `INBOUND_PORTS="80,90-80": "90-80" must begin with the lower port`,
		p + `INBOUND_IPS="10.0.0.1, 10.0.0.2": " 10.0.0.2" must be an address`,
		p + `INBOUND_DEFAULT_POLICY: audit needs POLICY_CLUSTER_NETWORKS`,
		p + `POLICY_WORKLOAD: is not set: it identifies this workload to the policy controller`,
		`GOTOWER_ORIGIN="fixed:127.0.0.1": must have ip:port after fixed`,
		p + `IDENTITY_DISABLED: is no longer supported`,
		p + `LOG="linkerd=loud": log filter "linkerd=loud": "loud" must be trace`,
		p + `CONTROL_STREAM_LIFETIME: must be at least LINKERD2_PROXY_CONTROL_STREAM_INITIAL_TIMEOUT`,
		p + `DNS_MAX_TTL: must be at least LINKERD2_PROXY_DNS_MIN_TTL`,
		p + `ACCESS_LOG="nginx": must be apache or json`,
		p + `INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE="1": must be a decimal number from 16384 to 16777215`,
		p + `HTTP2_INITIAL_CONNECTION_WINDOW_SIZE="65534": must be a decimal number from 65535 to 2147483647`,
		p + `INBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE="1": must be a decimal number from 65535 to 2147483647`,
		p + `SHUTDOWN_GRACE_PERIOD="99999999999d": is too long`,
		p + `TAP_SVC_NAME="tap service": must be a DNS name`,
		p + `OUTBOUND_TCP_LISTEN_BACKLOG="0": must be a decimal number above 0`,
	} {
		require.ErrorContains(t, err, problem)
	}
	var first *settings.InvalidError
	require.ErrorAs(t, err, &first)
	many, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok)
	require.Len(t, many.Unwrap(), 29, "and nothing else: %v", err)
}

func TestIgnoredVariableWarnings(t *testing.T) {
	s, err := settings.Read(from(least(
		"TRACE_COLLECTOR_SVC_ADDR", "collector:4317", "TRACE_PROTOCOL", "opencensus", "TRACE_ATTRIBUTES_PATH", "/does/not/exist",
		"TRACE_COLLECTOR_SVC_NAME", "collector.linkerd", "IDENTITY_SPIRE_SOCKET", "/run/spire",
		"OUTBOUND_ROUTER_CAPACITY", "100", "CORES", "none", "CORES_MAX", "0", "CORES_MAX_RATIO", "1.5",
		"INBOUND_DEFAULT_POLICY", "all-authenticated", "INBOUND_PORTS_REQUIRE_TLS", "80", "DESTINATION_SVC_NAME", "dst.linkerd",
		"INBOUND_METRICS_AUTHORITY_LABELS", "on", "INBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE", "1",
		"POLICY_SVC_ADDR", "policy:8090", "POLICY_SVC_NAME", "policy.linkerd", "POLICY_WORKLOAD", "w", "GOTOWER_IDENTITY_GENERATE", "true",
	)))
	require.NoError(t, err)
	require.Nil(t, s.Identity)
	require.Equal(t, settings.Cores{}, s.Cores)
	all := strings.Join(s.Warnings, "\n")
	for _, name := range []string{
		`TRACE_PROTOCOL="opencensus": must be opentelemetry: ignored`, `TRACE_ATTRIBUTES_PATH="/does/not/exist": open`,
		"TRACE_COLLECTOR_SVC_NAME is not verified", "IDENTITY_SPIRE_SOCKET is ignored",
		"OUTBOUND_ROUTER_CAPACITY is ignored", `CORES="none": must be`, `CORES_MAX="0"`, `CORES_MAX_RATIO="1.5"`,
		"INBOUND_DEFAULT_POLICY=all-authenticated without an identity", "INBOUND_PORTS_REQUIRE_TLS without an identity",
		"DESTINATION_SVC_NAME is not verified", "MAX_SEND_BUF_SIZE is ignored", `INBOUND_METRICS_AUTHORITY_LABELS="on"`,
		"POLICY_SVC_NAME is not verified", "GOTOWER_IDENTITY_GENERATE is ignored",
	} {
		require.Contains(t, all, name)
	}
	require.Len(t, s.Warnings, 15, all)
}

// Spans' attributes come from four variables. Later ones replace earlier ones, as in linkerd's
// proxy.
func TestTraceAttributes(t *testing.T) {
	labels := filepath.Join(t.TempDir(), "labels")
	require.NoError(t, os.WriteFile(labels, []byte("app=\"web\"\nzone=a\nnone\nkey2==value2\nempty=\"\"\n"), 0o600))
	s, err := settings.Read(from(least(
		"TRACE_COLLECTOR_SVC_ADDR", "collector:4317", "TRACE_PROTOCOL", "opentelemetry", "TRACE_SERVICE_NAME", "linkerd-proxy",
		"TRACE_ATTRIBUTES_PATH", labels, "TRACE_ANNOTATIONS_PATH", "/does/not/exist",
		"TRACE_EXTRA_ATTRIBUTES", "zone=b\nk8s.pod.ip=10.0.0.1\n", "OTEL_RESOURCE_ATTRIBUTES", "service.name=web, k8s.pod.ip=10.0.0.2",
	)))
	require.NoError(t, err)
	require.Empty(t, s.Warnings)
	require.Equal(t, settings.Controller{Addr: "collector:4317"}, s.Traces.Collector)
	require.Equal(t, map[string]string{
		"service.name": "web", "app": "web", "zone": "b", "key2": "=value2", "empty": "", "k8s.pod.ip": "10.0.0.2",
	}, s.Traces.Attributes)
	s, err = settings.Read(from(least("OTEL_RESOURCE_ATTRIBUTES", "a=1,2\nb=3")))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1,2", "b": "3"}, s.Traces.Attributes)
}

// Unknown names, which are probably misspelled, are reported in one warning.
func TestUnknownVariableWarning(t *testing.T) {
	vars := least("IDENTITY_SPIRE_WORKLOAD_API_ADDRESS", "unix:///run/spire")
	s, err := settings.Read(from(vars), settings.Environ([]string{
		"PATH=/bin", "LINKERD2_PROXY_NONSENSE=1", "GOTOWER_ORIGN=fixed", "GOTOWER_ORIGIN=redirected",
		"LINKERD2_PROXY_LOG=warn", "LINKERD2_PROXY_INBOUND_DISPATCH_TIMEOUT=1s", "LINKERD2_PROXY_GOTOWER_ORIGIN=redirected",
		"OTEL_SERVICE_NAME=web",
	}))
	require.NoError(t, err)
	require.Equal(t, []string{
		"LINKERD2_PROXY_IDENTITY_SPIRE_WORKLOAD_API_ADDRESS is ignored: certificates come from IDENTITY_SVC_ADDR",
		"unknown variables are ignored: GOTOWER_ORIGN, LINKERD2_PROXY_GOTOWER_ORIGIN, LINKERD2_PROXY_NONSENSE",
	}, s.Warnings)
}

// 0 means no waiting, and not a layer's default.
func TestZeroDurations(t *testing.T) {
	for _, name := range []string{
		"OUTBOUND_DETECT_TIMEOUT", "INBOUND_DETECT_TIMEOUT", "OUTBOUND_CONNECT_TIMEOUT", "INBOUND_CONNECT_TIMEOUT",
		"CONTROL_CONNECT_TIMEOUT", "CONTROL_DISPATCH_TIMEOUT", "IDENTITY_MAX_REFRESH",
	} {
		_, err := settings.Read(from(least(name, "0s", "IDENTITY_MIN_REFRESH", "0")))
		require.ErrorContains(t, err, "LINKERD2_PROXY_"+name+`="0s": must be above 0`)
	}
	s, err := settings.Read(from(least(
		"OUTBOUND_HTTP_FAILFAST_TIMEOUT", "0", "OUTBOUND_TCP_FAILFAST_TIMEOUT", "0ms", "INBOUND_HTTP_FAILFAST_TIMEOUT", "0s",
	)))
	require.NoError(t, err)
	for _, q := range []settings.Queue{s.Outbound.HTTPQueue, s.Outbound.TCPQueue, s.Inbound.HTTPQueue} {
		require.Zero(t, q.FailFast)
		require.EqualValues(t, 1, q.MaxWait(), "0 would mean no limit")
	}
	require.Equal(t, time.Second, settings.Queue{FailFast: time.Second}.MaxWait())
}

// Linux rejects longer times, and the connection would fail.
func TestKeepAliveLimit(t *testing.T) {
	s, err := settings.Read(from(map[string]string{
		"DESTINATION_SVC_ADDR": "localhost:1", "OUTBOUND_CONNECT_KEEPALIVE": "10h", "OUTBOUND_ACCEPT_KEEPALIVE": "32767s",
		"INBOUND_CONNECT_KEEPALIVE": "32768s", "INBOUND_ACCEPT_KEEPALIVE": "100000d",
	}))
	require.NoError(t, err)
	const most = 32767 * time.Second
	for _, socket := range []settings.Socket{
		s.Outbound.Connect.Socket, s.Outbound.Accept, s.Inbound.Connect.Socket, s.Inbound.Accept,
	} {
		require.Equal(t, most, socket.KeepAlive)
	}
	require.Equal(t, []string{
		"LINKERD2_PROXY_OUTBOUND_CONNECT_KEEPALIVE is 10h0m0s: 9h6m7s is used instead",
		"LINKERD2_PROXY_INBOUND_CONNECT_KEEPALIVE is 9h6m8s: 9h6m7s is used instead",
		"LINKERD2_PROXY_INBOUND_ACCEPT_KEEPALIVE is 2400000h0m0s: 9h6m7s is used instead",
	}, s.Warnings)
}
