package settings_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
)

const example = `# a sidecar
destination:
  svc_addr: dst.example:8086
  profile: {suffixes: [svc.cluster.local., example.com]}
outbound:
  connect_timeout: 2s
  connect: {exp_backoff: {min: 1ms, max: 2ms}}
  http: {queue_capacity: 7}
inbound_ports: [80, 90-99]
tap:
  labels: {Pod: web-0, ns: a}
log: warn,linkerd=debug
log_format: json
ingress_mode: true
origin: fixed:127.0.0.1:80
`

func TestFileEqualsEnvironment(t *testing.T) {
	s, err := settings.Read(from(nil), settings.File("proxy.yaml", []byte(example)))
	require.NoError(t, err)
	require.Equal(t, "dst.example:8086", s.Control.Destination.Addr)
	require.Equal(t, settings.Suffixes{"svc.cluster.local", "example.com"}, s.Control.ProfileSuffixes)
	require.Equal(t, 2*time.Second, s.Outbound.Connect.Timeout)
	require.Equal(t, 2*time.Millisecond, s.Outbound.Connect.Backoff.Max)
	require.Equal(t, 7, s.Outbound.HTTPQueue.Capacity)
	require.Equal(t, settings.Ports{{80, 80}, {90, 99}}, s.Inbound.Ports)
	require.Equal(t, map[string]string{"Pod": "web-0", "ns": "a"}, s.Tap.Labels)
	require.Equal(t, "warn,linkerd=debug", s.Log.Filter)
	require.True(t, s.Log.JSON)
	require.True(t, s.Outbound.Ingress)
	require.Equal(t, settings.Fixed, s.Outbound.Origin.Kind)
}

func TestEnvironmentOverridesFile(t *testing.T) {
	s, err := settings.Read(from(map[string]string{"OUTBOUND_CONNECT_TIMEOUT": "3s"}), settings.File("proxy.yaml", []byte(example)))
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, s.Outbound.Connect.Timeout)
	require.Equal(t, 7, s.Outbound.HTTPQueue.Capacity)
}

// The environment overrides the file even if they use different names for a variable.
func TestEnvironmentOverridesFileByOldName(t *testing.T) {
	for name, tt := range map[string]struct {
		env   [2]string
		file  string
		what  func(settings.Settings) any
		wants any
	}{
		"addresses": {
			[2]string{"OUTBOUND_LISTEN_ADDR", "127.0.0.1:1"}, "outbound_listen_addrs: 127.0.0.1:2",
			func(s settings.Settings) any { return s.Outbound.Listen }, []netip.AddrPort{addr("127.0.0.1:1")},
		},
		"cores": {
			[2]string{"CORES", "1"}, "cores_min: 2", func(s settings.Settings) any { return s.Cores.Min }, 1,
		},
		"most cores": {
			[2]string{"CORES_MAX_RATIO", "0.5"}, "cores_max: 2",
			func(s settings.Settings) any { return s.Cores.Count(10) }, 5,
		},
		"inbound origin": {
			[2]string{"ORIGIN", "redirected"}, "inbound_origin: fixed:127.0.0.1:80",
			func(s settings.Settings) any { return s.Inbound.Origin.Kind }, settings.Redirected,
		},
		"outbound origin": {
			[2]string{"ORIGIN", "redirected"}, "outbound_origin: fixed:127.0.0.1:80",
			func(s settings.Settings) any { return s.Outbound.Origin.Kind }, settings.Redirected,
		},
		"stream window": {
			[2]string{"HTTP2_INITIAL_STREAM_WINDOW_SIZE", "1"}, "inbound_server_http2_initial_stream_window_size: 2",
			func(s settings.Settings) any { return s.Inbound.Server.InitialStreamWindowSize }, uint32(1),
		},
		"connection window": {
			[2]string{"HTTP2_INITIAL_CONNECTION_WINDOW_SIZE", "70000"}, "outbound_server_http2_initial_connection_window_size: 80000",
			func(s settings.Settings) any { return s.Outbound.Server.InitialConnectionWindowSize }, uint32(70000),
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := settings.File("p.yaml", []byte(tt.file))
			s, err := settings.Read(from(least(tt.env[0], tt.env[1])), file)
			require.NoError(t, err)
			require.Equal(t, tt.wants, tt.what(s))
			s, err = settings.Read(from(least()), settings.File("p.yaml", []byte(tt.file)))
			require.NoError(t, err)
			require.NotEqual(t, tt.wants, tt.what(s), "the default differs")
		})
	}
	vars := identified(t)
	s, err := settings.Read(from(vars), settings.File("p.yaml", []byte("identity: {server_id: spiffe://a/b, server_name: b.a}")))
	require.NoError(t, err)
	require.Equal(t, vars["IDENTITY_LOCAL_NAME"], s.Identity.ServerID)
	require.Equal(t, vars["IDENTITY_LOCAL_NAME"], s.Identity.ServerName)
}

// An identity may be given by a pair of variables. The environment and the file may each set one of
// them, even if the single variable that can replace the pair is also set.
func TestFileIdentityPair(t *testing.T) {
	for name, file := range map[string]string{
		"IDENTITY_SERVER_ID": "server_name: b.a", "IDENTITY_SERVER_NAME": "server_id: spiffe://a/b",
	} {
		for _, local := range []bool{true, false} {
			vars := identified(t)
			if !local {
				delete(vars, "IDENTITY_LOCAL_NAME")
			}
			vars[name] = map[string]string{"IDENTITY_SERVER_ID": "spiffe://a/b", "IDENTITY_SERVER_NAME": "b.a"}[name]
			s, err := settings.Read(from(vars), settings.File("p.yaml", []byte("identity: {"+file+"}")))
			require.NoError(t, err, name)
			require.Equal(t, "spiffe://a/b", s.Identity.ServerID)
			require.Equal(t, "b.a", s.Identity.ServerName)
		}
	}
}

func TestFileErrors(t *testing.T) {
	_, err := settings.Read(from(map[string]string{"INBOUND_CONNECT_TIMEOUT": "3s"}), settings.File("p.yaml", []byte(`
destination_svc_addr: dst.example:8086
outbound:
  connect_timeout: 1.5s
  conect_timeout: 1s
  max_in_flight:
  listen_addr: &a 127.0.0.1:1
  Connect: 1
inbound:
  connect_timeout: soon
  listen_addr: *a
  ports: [80, {a: b}]
outbound_connect_timeout: 1s
log: {level: info}
`)))
	for _, problem := range []string{
		`p.yaml:4:20: outbound.connect_timeout="1.5s": must be digits and a unit`,
		`p.yaml:5:19: outbound.conect_timeout: is unknown`,
		`p.yaml:6:17: outbound.max_in_flight: has no value`,
		`p.yaml:8:3: outbound: key "Connect" must be a name in lower case`,
		`p.yaml:10:20: inbound.connect_timeout="soon": must be digits`, // although a variable won over it
		`p.yaml:11:16: inbound.listen_addr: must not be an alias`,
		`p.yaml:12:10: inbound.ports: must contain single values`,
		`p.yaml:13:27: outbound_connect_timeout: is set twice, first on line 4`,
		`p.yaml:14:14: log.level: is unknown`,
	} {
		require.ErrorContains(t, err, problem)
	}
	many, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok)
	require.Len(t, many.Unwrap(), 9, err)
}

// Each mistake in a file is reported with its place, its value and the allowed values.
func TestMistakesInFile(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{`outbound_listen_addr: localhost:4140`, `p.yaml:1:23: outbound_listen_addr="localhost:4140": must be ip:port, such as 127.0.0.1:4140`},
		{`outbound_listen_addr: 4140`, `p.yaml:1:23: outbound_listen_addr="4140": must be ip:port, such as 127.0.0.1:4140`},
		{`outbound_listen_addr: ''`, `p.yaml:1:23: outbound_listen_addr: must be ip:port, such as 127.0.0.1:4140`},
		{`outbound_listen_addr: 127.0.0.1:99999`, `p.yaml:1:23: outbound_listen_addr="127.0.0.1:99999": must be ip:port, such as 127.0.0.1:4140`},
		{`outbound_listen_addrs: [127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3]`, `p.yaml:1:24: outbound_listen_addrs="127.0.0.1:1,127.0.0.1:2,127.0.0.1:3": must be one ip:port or two`},
		{`outbound_listen_addrs: []`, `p.yaml:1:24: outbound_listen_addrs: "" must be ip:port, such as 127.0.0.1:4140`},
		{`outbound_listen_addrs: ['::1:1']`, `p.yaml:1:24: outbound_listen_addrs="::1:1": "::1:1" must be ip:port, such as 127.0.0.1:4140`},
		{`inbound: {listen_addr: all}`, `p.yaml:1:24: inbound.listen_addr="all": must be ip:port, such as 127.0.0.1:4140`},
		{`admin: {listen_addr: ':4191'}`, `p.yaml:1:22: admin.listen_addr=":4191": must be ip:port, such as 127.0.0.1:4140`},
		{`control: {listen_addr: 0.0.0.0}`, `p.yaml:1:24: control.listen_addr="0.0.0.0": must be ip:port, such as 127.0.0.1:4140`},
		{`origin: fixed`, `p.yaml:1:9: origin="fixed": must be redirected, proxy-protocol or fixed:ip:port`},
		{`origin: fixed:localhost:80`, `p.yaml:1:9: origin="fixed:localhost:80": must have ip:port after fixed, as in fixed:127.0.0.1:8080`},
		{`origin: iptables`, `p.yaml:1:9: origin="iptables": must be redirected, proxy-protocol or fixed:ip:port`},
		{`inbound_origin: proxy_protocol`, `p.yaml:1:17: inbound_origin="proxy_protocol": must be redirected, proxy-protocol or fixed:ip:port`},
		{`destination_svc_addr: dst.example`, `p.yaml:1:23: destination_svc_addr="dst.example": must be host:port, such as 127.0.0.1:8086`},
		{`destination_svc_addr: dst.example:0`, `p.yaml:1:23: destination_svc_addr="dst.example:0": must have a port from 1 to 65535`},
		{`destination_svc_addr: https://dst.example:8086`, `p.yaml:1:23: destination_svc_addr="https://dst.example:8086": must be host:port, such as 127.0.0.1:8086`},
		{`destination_svc_addr: :8086`, `p.yaml:1:23: destination_svc_addr=":8086": "" must be a DNS name or an address`},
		{`destination_svc_name: 'dst service'`, `p.yaml:1:23: destination_svc_name="dst service": must be a DNS name`},
		{`destination_profile_suffixes: ['*.local']`, `p.yaml:1:31: destination_profile_suffixes="*.local": "*.local" must be a DNS name, or "." for all`},
		{`destination_profile_networks: 10.0.0.0`, `p.yaml:1:31: destination_profile_networks="10.0.0.0": "10.0.0.0" must be a network such as 10.0.0.0/8`},
		{`destination_profile_networks: [10.0.0.0/33]`, `p.yaml:1:31: destination_profile_networks="10.0.0.0/33": "10.0.0.0/33" must be a network such as 10.0.0.0/8`},
		{`destination_profile_initial_timeout: 1.5s`, `p.yaml:1:38: destination_profile_initial_timeout="1.5s": must be digits and a unit: ms, s, m, h or d`},
		{`destination_get_suffixes: [a, 'b c']`, `p.yaml:1:27: destination_get_suffixes="a,b c": "b c" must be a DNS name, or "." for all`},
		{`outbound_connect_timeout: 1`, `p.yaml:1:27: outbound_connect_timeout="1": has no unit: ms, s, m, h or d`},
		{`outbound_connect_timeout: 0s`, `p.yaml:1:27: outbound_connect_timeout="0s": must be above 0`},
		{`outbound_connect_timeout: -1s`, `p.yaml:1:27: outbound_connect_timeout="-1s": must be digits and a unit: ms, s, m, h or d`},
		{`outbound: {connect: {timeout: 3 seconds}}`, `p.yaml:1:31: outbound.connect.timeout="3 seconds": must be digits and a unit: ms, s, m, h or d`},
		{`outbound_connect_keepalive: soon`, `p.yaml:1:29: outbound_connect_keepalive="soon": must be digits and a unit: ms, s, m, h or d`},
		{`outbound_max_in_flight: 1e6`, `p.yaml:1:25: outbound_max_in_flight="1e6": must be a whole number from 0 to 2147483647`},
		{`outbound_max_in_flight: -1`, `p.yaml:1:25: outbound_max_in_flight="-1": must be a whole number from 0 to 2147483647`},
		{`outbound_max_in_flight: 99999999999`, `p.yaml:1:25: outbound_max_in_flight="99999999999": must be a whole number from 0 to 2147483647`},
		{`outbound_http_queue_capacity: 10k`, `p.yaml:1:31: outbound_http_queue_capacity="10k": must be a whole number from 0 to 2147483647`},
		{`outbound_http_failfast_timeout: 300µs`, `p.yaml:1:33: outbound_http_failfast_timeout="300µs": must be digits and a unit: ms, s, m, h or d`},
		{`outbound_ports_disable_protocol_detection: [25, smtp]`, `p.yaml:1:44: outbound_ports_disable_protocol_detection="25,smtp": "smtp" must be a port or a range low-high`},
		{`outbound_ports_disable_protocol_detection: 90-80`, `p.yaml:1:44: outbound_ports_disable_protocol_detection="90-80": "90-80" must begin with the lower port`},
		{`inbound_ports: 0-65536`, `p.yaml:1:16: inbound_ports="0-65536": "0-65536" must be a port or a range low-high`},
		{`inbound_ips: [10.0.0.1, web]`, `p.yaml:1:14: inbound_ips="10.0.0.1,web": "web" must be an address`},
		{`inbound_gateway_suffixes: a..b`, `p.yaml:1:27: inbound_gateway_suffixes="a..b": "a..b" must be a DNS name, or "." for all`},
		{`inbound_default_policy: allow`, `p.yaml:1:25: inbound_default_policy="allow": must be deny, all-authenticated, all-unauthenticated, cluster-authenticated, cluster-unauthenticated or audit`},
		{`inbound_default_policy: audit`, `p.yaml:1:25: inbound_default_policy: audit needs POLICY_CLUSTER_NETWORKS`},
		{`policy_cluster_networks: 10/8`, `p.yaml:1:26: policy_cluster_networks="10/8": "10/8" must be a network such as 10.0.0.0/8`},
		{`policy_svc_addr: policy`, `p.yaml:1:18: policy_svc_addr="policy": must be host:port, such as 127.0.0.1:8086`},
		{`outbound_connect_exp_backoff_jitter: 101`, `p.yaml:1:38: outbound_connect_exp_backoff_jitter="101": must be a number from 0 to 100`},
		{`outbound_connect_exp_backoff_min: 2m`, `p.yaml:1:35: outbound_connect_exp_backoff_min: must be set together with LINKERD2_PROXY_OUTBOUND_CONNECT_EXP_BACKOFF_MAX`},
		{`outbound_connect_exp_backoff: {min: 2m, max: 1m}`, `LINKERD2_PROXY_OUTBOUND_CONNECT_EXP_BACKOFF_*: backoff: max 1m0s must be at least min 2m0s`},
		{`inbound_server_http2_max_frame_size: 16`, `p.yaml:1:38: inbound_server_http2_max_frame_size="16": must be a decimal number from 16384 to 16777215`},
		{`http2_initial_stream_window_size: big`, `p.yaml:1:35: http2_initial_stream_window_size="big": must be a decimal number from 1 to 2147483647`},
		{`outbound_server_http2_max_concurrent_streams: 0`, `p.yaml:1:47: outbound_server_http2_max_concurrent_streams="0": must be a decimal number from 1 to 4294967295`},
		{`tap_labels: [a]`, `p.yaml:1:13: tap_labels="a": "a" must be key=value`},
		{`tap_labels: {a: [b]}`, `p.yaml:1:13: tap_labels: must contain single values without commas`},
		{`tap_labels: {a: 'b,c'}`, `p.yaml:1:13: tap_labels: must contain single values without commas`},
		{`tap_svc_name: tap/x`, `p.yaml:1:15: tap_svc_name="tap/x": must be a DNS name`},
		{`log: linkerd=loud`, `p.yaml:1:6: log="linkerd=loud": log filter "linkerd=loud": "loud" must be trace, debug, info, warn, error or off`},
		{`access_log: nginx`, `p.yaml:1:13: access_log="nginx": must be apache or json`},
		{`metrics_retain_idle: 1w`, `p.yaml:1:22: metrics_retain_idle="1w": must be digits and a unit: ms, s, m, h or d`},
		{`shutdown_grace_period: 99999999999d`, `p.yaml:1:24: shutdown_grace_period="99999999999d": is too long`},
		{`shutdown_endpoint_enabled: yes`, `p.yaml:1:28: shutdown_endpoint_enabled="yes": must be true or false`},
		{`ingress_mode: 1`, `p.yaml:1:15: ingress_mode="1": must be true or false`},
		{`reuse_port: on`, `p.yaml:1:13: reuse_port="on": must be true or false`},
		{`dns: {min_ttl: 2s, max_ttl: 1s}`, `p.yaml:1:29: dns.max_ttl: must be at least p.yaml:1:16: dns.min_ttl`},
		{`identity_svc_addr: ca.example:8080`, "LINKERD2_PROXY_IDENTITY_DIR: is not set: it is required for an identity\nLINKERD2_PROXY_IDENTITY_TRUST_ANCHORS: is not set: it is required for an identity\nLINKERD2_PROXY_IDENTITY_TOKEN_FILE: is not set: it is required for an identity\nLINKERD2_PROXY_IDENTITY_SVC_NAME: is not set: the authority is not on this machine\nLINKERD2_PROXY_IDENTITY_LOCAL_NAME: is not set: it is required for an identity"},
		{`identity_disabled: true`, `p.yaml:1:20: identity_disabled: is no longer supported: leave the other IDENTITY variables out`},
		{`identity: {trust_anchors: none}`, "p.yaml:1:27: identity.trust_anchors: must be certificates in PEM\nLINKERD2_PROXY_IDENTITY_SVC_ADDR: is not set: it is required for an identity\nLINKERD2_PROXY_IDENTITY_DIR: is not set: it is required for an identity\nLINKERD2_PROXY_IDENTITY_TOKEN_FILE: is not set: it is required for an identity\nLINKERD2_PROXY_IDENTITY_LOCAL_NAME: is not set: it is required for an identity"},
		{`identity: {server_id: spiffe://A/b}`, "p.yaml:1:23: identity.server_id=\"spiffe://A/b\": must be a SPIFFE ID such as spiffe://cluster.local/ns/default/sa/web, the trust domain in lower case\nLINKERD2_PROXY_IDENTITY_SVC_ADDR: is not set: it is required for an identity\nLINKERD2_PROXY_IDENTITY_DIR: is not set: it is required for an identity\nLINKERD2_PROXY_IDENTITY_TRUST_ANCHORS: is not set: it is required for an identity\nLINKERD2_PROXY_IDENTITY_TOKEN_FILE: is not set: it is required for an identity\nLINKERD2_PROXY_IDENTITY_SERVER_NAME: is not set: it is required for an identity"},
		{`identity: {min_refresh: x}`, `p.yaml:1:25: identity.min_refresh="x": must be digits and a unit: ms, s, m, h or d`},
		{`outbond: {connect_timeout: 1s}`, `p.yaml:1:28: outbond.connect_timeout: is unknown: --help lists the settings`},
		{`outbound: {conect_timeout: 1s}`, `p.yaml:1:28: outbound.conect_timeout: is unknown: --help lists the settings`},
		{"outbound: {connect_timeout: 1s}\noutbound_connect_timeout: 2s", `p.yaml:2:27: outbound_connect_timeout: is set twice, first on line 1`},
		{`Outbound: {}`, `p.yaml:1:1: key "Outbound" must be a name in lower case`},
		{"outbound: &a {max_in_flight: 1}\ninbound: *a", `p.yaml:2:10: inbound: must not be an alias`},
		{`outbound: [1]`, `p.yaml:1:11: outbound: must be a mapping of settings`},
		{"? [a]\n: b", `p.yaml:1:3: key "" must be a name in lower case`},
		{`max_in_flight:`, `p.yaml:1:15: max_in_flight: is unknown: --help lists the settings`},
		{`inbound: {ports: [80, {a: b}]}`, `p.yaml:1:18: inbound.ports: must contain single values without commas`},
		{`a: b: c`, `p.yaml:1: not YAML: mapping values are not allowed in this context`},
		{"\tx: y", `p.yaml:1: not YAML: found character that cannot start any token`},
		{`log: "open`, `p.yaml:1: not YAML: found unexpected end of stream`},
		{`x: *a`, `p.yaml:1: not YAML: unknown anchor 'a' referenced`},
		{"{}\n---\n{}", `p.yaml:3:1: is a second document: the file must be one document`},
		{`- a`, `p.yaml:1:1: must be a mapping`},
	} {
		_, err := settings.Read(from(least()), settings.File("p.yaml", []byte(c.yaml)))
		require.EqualError(t, err, c.want, c.yaml)
	}
}

func TestEmptyFile(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "{}", "outbound: {}"} {
		_, err := settings.Read(from(least()), settings.File("p.yaml", []byte(content)))
		require.NoError(t, err, content)
	}
}

func FuzzFile(f *testing.F) {
	for _, s := range []string{example, "a: &a [*a]", "<<: {a: b}", "tap_labels: {a: [b]}", "{a: {b: {c: 1}}}", "\xff", "!!binary a: b", "tap: {labels: {a: }}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, content string) {
		s, err := settings.Read(from(least()), settings.File("p.yaml", []byte(content)))
		if err == nil && s.Control.Destination.Addr == "" {
			t.Fatalf("%q: %+v", content, s)
		}
	})
}

// A section in which all keys are comments is empty and valid.
func TestEmptySections(t *testing.T) {
	const text = "destination_svc_addr: localhost:1\noutbound:\n  # connect_timeout: 2s\noutbound_connect:\n"
	_, err := settings.Read(from(nil), settings.File("p.yaml", []byte(text)))
	require.NoError(t, err)
	_, err = settings.Read(from(nil), settings.File("p.yaml", []byte(text+"outbond:\n")))
	require.ErrorContains(t, err, "outbond: is unknown")
}
