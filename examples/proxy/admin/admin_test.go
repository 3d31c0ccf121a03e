package admin_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/examples/proxy/admin"
	"github.com/gotower/gotower/examples/proxy/logs"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/view"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a Handler on a real socket, with the calls that it has made.
type server struct {
	*httptest.Server
	level *logs.Level
	ready atomic.Bool
	downs atomic.Int64
}

func serve(t *testing.T, change ...func(*admin.Config)) *server {
	t.Helper()
	level, err := logs.NewLevel("warn,linkerd=info")
	require.NoError(t, err)
	s := &server{level: level}
	c := admin.Config{
		Ready:   s.ready.Load,
		Metrics: meters.New(meters.Config{}).Handler(),
		Level:   level,
		Environ: func() []string {
			return []string{
				"A=1", "B=b=c", "EMPTY=", "LINKERD2_PROXY_IDENTITY_TOKEN_FILE=/token", "Db_Password=x", "api_key=y", "MY_SECRET=z",
				"DATABASE_URL=postgres://me:hu/sh@db:5432/web?a=b@c", "PROXY_URL=http://proxy:3128", "PGPASS=x", "AWS_CREDENTIALS=x", "BASIC_AUTH=me:x",
				"PWD=/", "LINKERD2_PROXY_INBOUND_METRICS_AUTHORITY_LABELS=unsafe",
			}
		},
		Shutdown: func() { s.downs.Add(1) },
		Describe: func() layer.Node { return layer.Node{Name: "limit", State: layer.State{{Key: "max", Value: 7}}} },
		Page:     view.New(view.Config{Title: "test"}),
		Hosts:    []string{"proxy.test"},
	}
	for _, f := range change {
		f(&c)
	}
	h := admin.New(c)
	s.Server = httptest.NewServer(h)
	t.Cleanup(func() {
		h.Shutdown()
		s.Close()
	})
	return s
}

// ask sends a request. header contains names and values in turn, and may include Host.
func (s *server) ask(t *testing.T, method, path, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	tr := &http.Transport{DisableKeepAlives: true}
	rsp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return rsp, string(text)
}

func TestEveryPath(t *testing.T) {
	s := serve(t)
	s.ready.Store(true)
	for _, tt := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/live", 200, "live\n"},
		{"HEAD", "/live", 200, ""},
		{"POST", "/live", 405, "only GET, HEAD\n"},
		{"GET", "/ready", 200, "ready\n"},
		{"PUT", "/ready", 405, "only GET, HEAD\n"},
		{"GET", "/metrics", 200, "# EOF\n"},
		{"DELETE", "/metrics", 405, "only GET, HEAD\n"},
		{"GET", "/proxy-log-level", 200, "warn,linkerd=info\n"},
		{"POST", "/proxy-log-level", 405, "only GET, HEAD, PUT\n"},
		{"POST", "/env.json", 405, "only GET\n"},
		{"GET", "/shutdown", 405, "only POST\n"},
		{"GET", "/stack", 200, "limit      max=7\n"},
		{"GET", "/stack?o=json", 200, `"name":"limit"`},
		{"POST", "/stack", 405, "only GET, HEAD\n"},
		{"GET", "/view/", 200, "<html"},
		{"POST", "/view/", 405, "only GET and HEAD"},
		{"GET", "/", 302, ""},
		{"GET", "/logs.json", 404, ""},
		{"GET", "/debug/pprof/profile.pb.gz", 404, ""},
		{"GET", "/live/", 404, ""},
		{"GET", "/other", 404, ""},
	} {
		t.Run(tt.method+tt.path, func(t *testing.T) {
			rsp, body := s.ask(t, tt.method, tt.path, "")
			require.Equal(t, tt.status, rsp.StatusCode, body)
			require.Contains(t, body, tt.want)
			if tt.status == http.StatusMethodNotAllowed {
				require.NotEmpty(t, rsp.Header.Get("Allow"))
			}
		})
	}
	require.Zero(t, s.downs.Load())
}

// A draining proxy stays ready (G2).
func TestReadyWhileDraining(t *testing.T) {
	s := serve(t)
	for range 2 {
		rsp, body := s.ask(t, "GET", "/ready", "")
		require.Equal(t, 503, rsp.StatusCode)
		require.Equal(t, "not ready\n", body)
	}
	s.ready.Store(true)
	rsp, _ := s.ask(t, "GET", "/ready", "")
	require.Equal(t, 200, rsp.StatusCode)
	s.ready.Store(false)
	rsp, _ = s.ask(t, "GET", "/ready", "")
	require.Equal(t, 200, rsp.StatusCode, "it never goes back")
}

func TestLogLevel(t *testing.T) {
	s := serve(t)
	var b strings.Builder
	log := slog.New(logs.New(&b, s.level))
	log.Debug("no")
	rsp, _ := s.ask(t, "PUT", "/proxy-log-level", "warn,linkerd=debug\n")
	require.Equal(t, 204, rsp.StatusCode)
	_, body := s.ask(t, "GET", "/proxy-log-level", "")
	require.Equal(t, "warn,linkerd=debug\n", body)
	log.Debug("yes")
	require.Equal(t, 1, strings.Count(b.String(), "\n"))
	for _, bad := range []string{"", "linkerd=loud", "\xff=info", strings.Repeat("a,", 20_000)} {
		rsp, body := s.ask(t, "PUT", "/proxy-log-level", bad)
		require.Equal(t, 400, rsp.StatusCode, "%.20q: %s", bad, body)
	}
	require.Equal(t, "warn,linkerd=debug", s.level.Filter().String())
}

// The environment is served without secrets (H9).
func TestEnviron(t *testing.T) {
	s := serve(t)
	environ := func(query string, header ...string) (int, map[string]any) {
		rsp, body := s.ask(t, "GET", "/env.json"+query, "", header...)
		var m map[string]any
		if strings.Contains(rsp.Header.Get("Content-Type"), "application/json") {
			require.NoError(t, json.Unmarshal([]byte(body), &m))
		}
		return rsp.StatusCode, m
	}
	status, all := environ("")
	require.Equal(t, 200, status)
	require.Equal(t, map[string]any{
		"A": "1", "B": "b=c", "EMPTY": "", "LINKERD2_PROXY_IDENTITY_TOKEN_FILE": "(redacted)",
		"Db_Password": "(redacted)", "api_key": "(redacted)", "MY_SECRET": "(redacted)",
		"DATABASE_URL": "postgres://(redacted)@c", "PROXY_URL": "http://proxy:3128", "PGPASS": "(redacted)", "AWS_CREDENTIALS": "(redacted)",
		"BASIC_AUTH": "(redacted)", "PWD": "/", "LINKERD2_PROXY_INBOUND_METRICS_AUTHORITY_LABELS": "unsafe",
	}, all)
	status, some := environ("?A&NONE&MY_SECRET")
	require.Equal(t, 200, status)
	require.Equal(t, map[string]any{"A": "1", "NONE": nil, "MY_SECRET": "(redacted)"}, some)
	status, problem := environ("?A=1")
	require.Equal(t, 400, status)
	require.Equal(t, map[string]any{"error": "env.json query parameters may not contain key-value pairs"}, problem)
	for accept, want := range map[string]int{
		"application/json": 200, "*/*": 200, "text/html, application/*;q=0.1": 200, "application/json;charset=utf-8": 200,
		"text/html": 406, "application/json;q=0": 406, ";;": 406, "": 406,
	} {
		status, _ := environ("", "Accept", accept)
		require.Equal(t, want, status, accept)
	}
}

// All clients can read the environment, so secrets in values are replaced.
func TestEnvironSecretsInValues(t *testing.T) {
	for value, want := range map[string]string{
		"authorization=Bearer s3cr3t":                   "authorization=(redacted)",
		"Authorization: Basic s3cr3t":                   "Authorization: (redacted)",
		"a=1&password=s3cr3t&b=2":                       "a=1&password=(redacted)&b=2",
		"jdbc:postgresql://db/x?user=u&password=s3cr3t": "jdbc:postgresql://db/x?user=u&password=(redacted)",
		"host=db password='s3 cr3t' dbname=x":           "host=db password=(redacted) dbname=x",
		"Server=db;Pwd=s3cr3t;App=x":                    "Server=db;Pwd=(redacted);App=x",
		"https://api.example/?api_key=s3cr3t#a":         "https://api.example/?api_key=(redacted)",
		"-v --token=s3cr3t --level debug":               "-v --token=(redacted) --level debug",
		"run --token s3cr3t --level debug":              "run --token (redacted) --level debug",
		`{"a":{"apiKey":"s3\"cr3t"},"b":"c"}`:           `{"a":{"apiKey":(redacted)},"b":"c"}`,
		"user:s3cr3t@tcp(db:3306)/x":                    "(redacted)@tcp(db:3306)/x",
		"me:s3c@r3t@db/x":                               "(redacted)@db/x",
		"me:s3cr3t@tcp(db)/x?proxy=http://p":            "(redacted)@tcp(db)/x?proxy=http://p",
		"me:s3cr3t@h1,amqp://you:s3cr3t@h2":             "(redacted)@h1,amqp://(redacted)@h2",
		"-----BEGIN PRIVATE KEY-----\ns3cr3t\n-----END": "(redacted)",
		"http://auth-service:8080/x":                    "http://auth-service:8080/x",
		"auth-service:8080,key-service:80":              "auth-service:8080,key-service:80",
		"authority=web":                                 "authority=web",
		"info,linkerd=debug":                            "info,linkerd=debug",
		"the key of the map":                            "the key of the map",
		"--key --level debug":                           "--key --level debug",
	} {
		h := admin.New(admin.Config{Environ: func() []string { return []string{"VALUE=" + value} }})
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/env.json", http.NoBody))
		var got map[string]string
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got), value)
		require.Equal(t, want, got["VALUE"], value)
	}
}

func TestShutdown(t *testing.T) {
	s := serve(t)
	rsp, body := s.ask(t, "POST", "/shutdown", "")
	require.Equal(t, 200, rsp.StatusCode)
	require.Equal(t, "shutdown\n", body)
	require.EqualValues(t, 1, s.downs.Load())

	s = serve(t, func(c *admin.Config) { c.Shutdown = nil })
	rsp, body = s.ask(t, "POST", "/shutdown", "")
	require.Equal(t, 404, rsp.StatusCode)
	require.Equal(t, "shutdown endpoint is not enabled\n", body)
}

func TestLocalPaths(t *testing.T) {
	var downs int
	level, err := logs.NewLevel("info")
	require.NoError(t, err)
	h := admin.New(admin.Config{
		Level: level, Shutdown: func() { downs++ }, Environ: func() []string { return nil },
		Describe: func() layer.Node { return layer.Node{Name: "secret"} },
	})
	for _, addr := range []string{"10.0.0.1:1234", "[fd00::1]:1", "nonsense"} {
		for _, r := range []*http.Request{
			httptest.NewRequest("POST", "http://10.0.0.2:4191/shutdown", nil),
			httptest.NewRequest("GET", "http://10.0.0.2:4191/proxy-log-level", nil),
			httptest.NewRequest("PUT", "http://10.0.0.2:4191/proxy-log-level", strings.NewReader("debug")),
			httptest.NewRequest("GET", "http://10.0.0.2:4191/stack", nil),
			httptest.NewRequest("GET", "http://10.0.0.2:4191/stack?o=json", nil),
		} {
			r.RemoteAddr = addr
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.Equal(t, 403, w.Code)
			require.NotContains(t, w.Body.String(), "secret")
		}
		for _, path := range []string{"/live", "/env.json"} {
			r := httptest.NewRequest("GET", "http://10.0.0.2:4191"+path, nil)
			r.RemoteAddr = addr
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.Equal(t, 200, w.Code, "probes come from the node, and linkerd's proxy shows the environment")
		}
	}
	require.Zero(t, downs)
	require.Equal(t, "info", level.Filter().String())

	s := serve(t)
	rsp, _ := s.ask(t, "POST", "/shutdown", "", "X-Forwarded-For", "10.0.0.1")
	require.Equal(t, 403, rsp.StatusCode, "the origin of the request is unknown")
	require.Zero(t, s.downs.Load())
}

// Requests are rejected if they come through DNS names that point here, or from another origin's
// forms and scripts.
func TestForeignPages(t *testing.T) {
	s := serve(t)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	require.NoError(t, err)
	paths := map[string]string{"/stack": "GET", "/proxy-log-level": "PUT", "/shutdown": "POST", "/env.json": "GET"}
	for path, method := range paths {
		for _, header := range [][]string{
			{"Host", "evil.example:" + port}, {"Host", "127.0.0.1.evil.example"}, {"Host", "localhost.evil.example"},
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
			{"Origin", "http://evil.example"}, {"Origin", "null"},
		} {
			rsp, _ := s.ask(t, method, path, "info", header...)
			require.Equal(t, 403, rsp.StatusCode, "%s %s", path, header)
		}
		for _, header := range [][]string{
			nil, {"Host", "localhost:" + port}, {"Host", "LOCALHOST."}, {"Host", "[::1]:" + port}, {"Host", "[::1]"}, {"Host", "10.1.2.3"},
			{"Host", "Proxy.Test:4191"}, {"Sec-Fetch-Site", "same-origin"}, {"Origin", s.URL},
		} {
			rsp, body := s.ask(t, method, path, "info", header...)
			require.Less(t, rsp.StatusCode, 300, "%s %s: %s", path, header, body)
		}
	}
	rsp, _ := s.ask(t, "GET", "/metrics", "", "Host", "prometheus-sees-it-by-name")
	require.Equal(t, 200, rsp.StatusCode)
}

func TestMissingFields(t *testing.T) {
	s := httptest.NewServer(admin.New(admin.Config{}))
	defer s.Close()
	for path, want := range map[string]int{
		"/live": 200, "/ready": 200, "/metrics": 404, "/proxy-log-level": 404, "/env.json": 404, "/stack": 404, "/view/": 404, "/": 404,
	} {
		tr := &http.Transport{DisableKeepAlives: true}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		require.NoError(t, err)
		rsp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.Equal(t, want, rsp.StatusCode, path)
	}
}

func FuzzEnviron(f *testing.F) {
	f.Add("A&B", "application/json")
	f.Add("A=1", "*/*;q=0.x")
	f.Add("&&%zz", "application/json;q=\"")
	h := admin.New(admin.Config{Environ: func() []string { return []string{"A=1", "KEY=secret"} }})
	f.Fuzz(func(t *testing.T, query, accept string) {
		r := httptest.NewRequest(http.MethodGet, "http://localhost/env.json", nil)
		r.URL.RawQuery = query
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == http.StatusOK && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%q %q: %q", query, accept, w.Body)
		}
		if !strings.Contains(query, "secret") && strings.Contains(w.Body.String(), "secret") {
			t.Fatalf("%q %q: %q", query, accept, w.Body)
		}
	})
}

func ExampleNew() {
	var ready atomic.Bool
	srv := httptest.NewServer(admin.New(admin.Config{Ready: ready.Load}))
	defer srv.Close()
	ask := func() {
		rsp, err := srv.Client().Get(srv.URL + "/ready")
		if err != nil {
			fmt.Println(err)
			return
		}
		defer rsp.Body.Close()
		body, _ := io.ReadAll(rsp.Body)
		fmt.Print(rsp.StatusCode, " ", string(body))
	}
	ask()
	ready.Store(true)
	ask()
	// Output:
	// 503 not ready
	// 200 ready
}
