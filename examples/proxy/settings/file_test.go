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

// Also where the two have different names for one thing.
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

// Of the two that an identity may be made of, one may come from either side, also
// beside the name that would do instead.
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
		`p.yaml:4: outbound.connect_timeout="1.5s": must be digits and a unit`,
		`p.yaml:5: outbound.conect_timeout: is unknown`,
		`p.yaml:6: outbound.max_in_flight: has no value`,
		`p.yaml:8: outbound: key "Connect" must be a name in lower case`,
		`p.yaml:10: inbound.connect_timeout="soon": must be digits`, // although a variable won over it
		`p.yaml:11: inbound.listen_addr: must not be an alias`,
		`p.yaml:12: inbound.ports: must contain scalars`,
		`p.yaml:13: outbound_connect_timeout: is set twice, first on line 4`,
		`p.yaml:14: log.level: is unknown`,
	} {
		require.ErrorContains(t, err, problem)
	}
	many, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok)
	require.Len(t, many.Unwrap(), 9, err)
}

func TestFileInvalid(t *testing.T) {
	for content, problem := range map[string]string{
		"a: b: c":      "p.yaml: yaml: ",
		"- a":          "p.yaml:1: must be a mapping",
		"{}\n---\n{}":  "must be one document",
		"{}\n---\n[2s": "yaml: ",
		"{}\n...\n%%%": "yaml: ",
		"? [a]\n: b\n": "must be a name in lower case",
	} {
		_, err := settings.Read(from(least()), settings.File("p.yaml", []byte(content)))
		require.ErrorContains(t, err, problem, content)
	}
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

// A section in which all keys are comments is empty, and valid.
func TestEmptySections(t *testing.T) {
	const text = "destination_svc_addr: localhost:1\noutbound:\n  # connect_timeout: 2s\noutbound_connect:\n"
	_, err := settings.Read(from(nil), settings.File("p.yaml", []byte(text)))
	require.NoError(t, err)
	_, err = settings.Read(from(nil), settings.File("p.yaml", []byte(text+"outbond:\n")))
	require.ErrorContains(t, err, "outbond: is unknown")
}
