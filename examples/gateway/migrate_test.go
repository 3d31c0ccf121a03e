package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/gateway/internal/certtest"
)

// echo is the body of a response of the services of MIGRATE.md.
type echo struct {
	Name, Host, URI string
	Header          http.Header
}

// moved is a gateway with a file of MIGRATE.md, whose services are servers of the test.
type moved struct{ *process }

// get sends a request and returns the status and what the service got.
func (m moved) get(t *testing.T, path string, fields ...string) (answer, echo) {
	t.Helper()
	a := m.process.get(t, "GET", path, fields...)
	var e echo
	_ = json.Unmarshal([]byte(a.body), &e) // not every response is of a service
	return a, e
}

// names returns the names of the services that served n requests.
func (m moved) names(t *testing.T, n int, path string, fields ...string) map[string]int {
	t.Helper()
	count := make(map[string]int)
	for range n {
		a, e := m.get(t, path, fields...)
		require.Equal(t, http.StatusOK, a.StatusCode)
		count[e.Name]++
	}
	return count
}

// migrations are the requests that show that the gateway does what the other configurations of a section
// do.
func migrations() map[string]func(*testing.T, moved) {
	return map[string]func(*testing.T, moved){
		"Reverse proxy": func(t *testing.T, m moved) {
			_, e := m.get(t, "/a?b=c", "Host: example.com")
			assert.Equal(t, []string{"3000", "example.com", "/a?b=c"}, []string{e.Name, e.Host, e.URI})
		},
		"Virtual hosts": func(t *testing.T, m moved) {
			assert.Equal(t, map[string]int{"3000": 1}, m.names(t, 1, "/", "Host: shop.example.com"))
			assert.Equal(t, map[string]int{"3001": 1}, m.names(t, 1, "/", "Host: a.b.example.com"))
			a, _ := m.get(t, "/", "Host: example.org")
			assert.Equal(t, http.StatusMisdirectedRequest, a.StatusCode)
		},
		"Path without its prefix": func(t *testing.T, m moved) {
			_, e := m.get(t, "/api/users/7?a=b")
			assert.Equal(t, "/users/7?a=b", e.URI)
			a, _ := m.get(t, "/apis")
			assert.Equal(t, http.StatusNotFound, a.StatusCode)
		},
		"HTTPS, and a redirect to it": func(t *testing.T, m moved) {
			a, _ := m.get(t, "/a?b", "Host: example.com")
			assert.Equal(t, []any{308, "https://example.com/a?b"}, []any{a.StatusCode, a.Header.Get("Location")})
			for _, http2 := range []bool{false, true} {
				transport := &http.Transport{ForceAttemptHTTP2: http2, TLSClientConfig: &tls.Config{ServerName: "example.com", InsecureSkipVerify: true}}
				rsp, err := (&http.Client{Transport: transport}).Get("https://" + m.addresses["https"] + "/")
				require.NoError(t, err)
				rsp.Body.Close()
				assert.Equal(t, []any{200, http2}, []any{rsp.StatusCode, rsp.ProtoMajor == 2})
				assert.Equal(t, "example.com", rsp.TLS.PeerCertificates[0].Subject.CommonName)
				transport.CloseIdleConnections()
			}
		},
		"Certificates by ACME": func(t *testing.T, m moved) { // TestACME obtains one
			conn, err := net.Dial("tcp", m.addresses["https"])
			require.NoError(t, err)
			defer conn.Close()
			err = tls.Client(conn, &tls.Config{ServerName: "example.org"}).HandshakeContext(t.Context())
			require.ErrorContains(t, err, "tls: ", "another name has no certificate")
		},
		"Redirect to another host": func(t *testing.T, m moved) {
			a, _ := m.get(t, "/a?b=c", "Host: www.example.com")
			assert.Equal(t, []any{301, "https://example.com/a?b=c"}, []any{a.StatusCode, a.Header.Get("Location")})
		},
		"Weights of servers": func(t *testing.T, m moved) {
			until(t, func() bool { return len(m.names(t, 20, "/")) == 2 }) // both servers are connected
			assert.InDelta(t, 300, m.names(t, 400, "/")["3000"], 10)
		},
		"Canary release": func(t *testing.T, m moved) {
			assert.InDelta(t, 40, m.names(t, 400, "/")["3001"], 36)
			assert.Equal(t, map[string]int{"3001": 20}, m.names(t, 20, "/", "X-Version: new"))
		},
		"Health checks": func(t *testing.T, m moved) { // /healthz of 3001 fails
			until(t, func() bool { return m.names(t, 20, "/")["3000"] == 20 })
		},
		"Sticky sessions": func(t *testing.T, m moved) {
			until(t, func() bool { return len(m.names(t, 20, "/")) == 2 }) // both servers are connected
			a, first := m.get(t, "/")
			cookie, _, _ := strings.Cut(a.Header.Get("Set-Cookie"), ";")
			require.Contains(t, cookie, "session=")
			assert.Equal(t, map[string]int{first.Name: 30}, m.names(t, 30, "/", "Cookie: "+cookie))
		},
		"Timeouts and retries": func(t *testing.T, m moved) { // /flaky fails every other time
			assert.Equal(t, map[string]int{"3000": 20}, m.names(t, 20, "/flaky"))
		},
		"gRPC": func(t *testing.T, m moved) {
			conn, err := grpc.NewClient(m.addresses["http"], grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			require.NoError(t, err)
		},
		"Passwords": func(t *testing.T, m moved) {
			a, _ := m.get(t, "/")
			assert.Equal(t, []any{401, `Basic realm="shop", charset="UTF-8"`}, []any{a.StatusCode, a.Header.Get("WWW-Authenticate")})
			assert.Equal(t, map[string]int{"3000": 1}, m.names(t, 1, "/", "Authorization: Basic ZW1tYTpzZWNyZXQ=")) // emma:secret
		},
		"Authorization by a service": func(t *testing.T, m moved) { // /check of 3001 accepts a cookie
			a, _ := m.get(t, "/")
			assert.Equal(t, http.StatusForbidden, a.StatusCode)
			_, e := m.get(t, "/", "Cookie: user=emma", "X-User: admin")
			assert.Equal(t, []string{"emma"}, e.Header["X-User"])
		},
		"Addresses of clients": func(t *testing.T, m moved) {
			for client, want := range map[string]int{"10.1.2.3": 200, "192.0.2.1": 403, "10.1.2.3, 192.0.2.1": 403} {
				a, _ := m.get(t, "/admin", "X-Forwarded-For: "+client)
				assert.Equal(t, want, a.StatusCode, client)
			}
			assert.Equal(t, map[string]int{"3000": 1}, m.names(t, 1, "/"))
		},
		"Rate limit of each client": func(t *testing.T, m moved) {
			until(t, func() bool { a, _ := m.get(t, "/"); return a.StatusCode == http.StatusTooManyRequests })
		},
		"Largest body": func(t *testing.T, m moved) {
			for size, want := range map[int]int{1 << 20: 200, 1<<20 + 1: 413} {
				a, err := m.send(t.Context(), "POST", "http://"+m.addresses["http"]+"/", strings.Repeat("x", size))
				require.NoError(t, err)
				assert.Equal(t, want, a.StatusCode)
			}
		},
		"Headers": func(t *testing.T, m moved) {
			a, e := m.get(t, "/", "X-Real-IP: 10.0.0.1")
			assert.Equal(t, []string{"127.0.0.1"}, e.Header["X-Real-Ip"])
			assert.Regexp(t, "^[0-9a-f]{32}$", e.Header.Get("X-Request-ID"))
			assert.Equal(t, []string{"max-age=31536000", ""}, []string{a.Header.Get("Strict-Transport-Security"), a.Header.Get("X-Powered-By")})
		},
		"Site with an API": func(t *testing.T, m moved) {
			assert.Equal(t, map[string]int{"3000": 1}, m.names(t, 1, "/api/users"))
			for _, path := range []string{"/", "/users/7"} {
				a, _ := m.get(t, path)
				assert.Equal(t, "<p>start", a.body)
			}
			a, _ := m.get(t, "/style.css", "Accept-Encoding: gzip")
			assert.Equal(t, []string{"gzip", "text/css; charset=utf-8"}, []string{a.Header.Get("Content-Encoding"), a.Header.Get("Content-Type")})
		},
		"Several files and environments": func(t *testing.T, m moved) {
			assert.Equal(t, map[string]int{"3001": 1}, m.names(t, 1, "/app"))
			a, _ := m.get(t, "/more")
			assert.Equal(t, "more", a.body)
		},
	}
}

// Each file of the gateway in MIGRATE.md does what its section says.
func TestMigrate(t *testing.T) {
	page, err := os.ReadFile("MIGRATE.md")
	require.NoError(t, err)
	sections := strings.Split(string(page), "\n## ")[1:]
	checks := migrations()
	require.Len(t, sections, len(checks))
	addresses := map[string]string{"127.0.0.1:3000": newEcho(t, "3000"), "127.0.0.1:3001": newEcho(t, "3001"), "127.0.0.1:50051": newHealthServer(t)}
	t.Setenv("APP", addresses["127.0.0.1:3001"])
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	for _, section := range sections {
		title, _, _ := strings.Cut(section, "\n")
		t.Run(title, func(t *testing.T) {
			check := checks[title]
			require.NotNil(t, check)
			text := block.FindAllStringSubmatch(section, -1)
			require.Len(t, text, 1)
			file := text[0][1]
			if !strings.Contains(file, "listeners:\n") && !strings.Contains(file, "listeners: [") {
				file = "listeners: [{name: http, address: \":80\"}]\n" + file
			}
			require.NoError(t, run(t.Context(), []string{"check", migrationDir(t, file)}, io.Discard, io.Discard))
			for from, to := range addresses {
				file = strings.ReplaceAll(file, from, to)
			}
			file = regexp.MustCompile(`address: ":\d+"`).ReplaceAllString(file, `address: "127.0.0.1:0"`)
			file = strings.ReplaceAll(file, "interval: 5s", "interval: 20ms")
			check(t, moved{startFile(t, migrationDir(t, file+"admin: {address: \"127.0.0.1:0\", tap: \"off\"}\naccessLog: {format: \"off\"}\n"))})
		})
	}
}

// migrationDir returns the path of a file with the given text, beside the files to which MIGRATE.md refers.
func migrationDir(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"public/index.html": "<p>start", "public/style.css": strings.Repeat("p {}\n", 1000), "users.htpasswd": "emma:" + hash(t, "secret") + "\n",
		"conf.d/more.yaml": "routes: [{name: more, matches: [{path: {exact: /more}}], directResponse: {status: 200, body: more}}]\n", "tls/none": "",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	certtest.New(t, "example.com").Write(t, filepath.Join(dir, "tls", "example"), filepath.Join(dir, "tls", "ca.crt"))
	return writeIn(t, dir, text)
}

// newEcho returns the address of a service of MIGRATE.md.
func newEcho(t *testing.T, name string) string {
	t.Helper()
	flaky := make(chan bool, 1)
	flaky <- false
	return serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Powered-By", "test")
		user, err := r.Cookie("user")
		switch {
		case r.URL.Path == "/healthz" && name == "3001":
			w.WriteHeader(http.StatusInternalServerError)
		case r.URL.Path == "/check" && err != nil:
			w.WriteHeader(http.StatusForbidden)
		case r.URL.Path == "/check":
			w.Header().Set("X-User", user.Value)
		case r.URL.Path == "/flaky":
			fails := <-flaky
			flaky <- !fails
			if fails {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			fallthrough
		default:
			_, _ = io.Copy(io.Discard, r.Body)
			_ = json.NewEncoder(w).Encode(echo{name, r.Host, r.RequestURI, r.Header})
		}
	})
}

// newHealthServer returns the address of a gRPC server that has only the service of health checks.
func newHealthServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// The page says what the defaults are.
func TestMigrateDefaults(t *testing.T) {
	c, err := config.Parse("gateway.yaml", []byte(head+"services:\n"+service("a", "10.0.0.1:80")+"routes: [{name: a, backendRefs: [{name: a}]}]\n"))
	require.NoError(t, err)
	r := c.Routes[0]
	assert.Equal(t, []any{time.Minute, 0, 2, false}, []any{r.Timeouts.Request.D(), r.MaxRequestBodyBytes, r.Retry.Attempts, r.Retry.NonIdempotent})
}
