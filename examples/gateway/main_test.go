package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/examples/gateway/internal/certtest"
	"github.com/gotower/gotower/profiles"
)

// asGateway has this test program be the gateway itself.
const asGateway = "GOTOWER_TEST_AS_GATEWAY"

func TestMain(m *testing.M) {
	if os.Getenv(asGateway) != "" {
		main()
		return
	}
	// Most parallel tests wait, so more of them than CPUs may run.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// process is a gateway that runs until the test ends.
type process struct {
	file      string
	addresses map[string]string // of the listeners, and "admin"
	client    *http.Client
	log       *syncBuffer
	stop      func()       // as SIGTERM
	ended     func() error // waits for the end
}

// syncBuffer is a text that goroutines write.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// until waits for ok, which the goroutine of the test calls.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	late := time.After(time.Minute)
	for !ok() {
		select {
		case <-late:
			require.Fail(t, "a minute has passed")
		case <-time.After(time.Millisecond):
		}
	}
}

// head is the start of most configurations of tests.
const head = `
listeners: [{name: http, address: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", tap: "off"}
accessLog: {format: "off"}
`

// start runs the gateway with a configuration.
func start(t testing.TB, text string) *process {
	t.Helper()
	return startFrom(t, text, nil)
}

// startFrom runs the gateway with a configuration and the routes of source, or those of the configuration
// if source is nil.
func startFrom(t testing.TB, text string, source profiles.Source) *process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return startLine(t, &commandLine{args: []string{file}, routes: source})
}

func startFile(t testing.TB, file string) *process {
	t.Helper()
	return startLine(t, &commandLine{args: []string{file}})
}

func startLine(t testing.TB, line *commandLine) *process {
	t.Helper()
	file := line.args[0]
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	p := &process{file: file, addresses: map[string]string{}, log: &syncBuffer{}, stop: stop}
	line.stdout, line.stderr = in, p.log
	done := make(chan error, 1)
	go func() {
		done <- serveFile(ctx, line)
		in.Close()
	}()
	p.ended = sync.OnceValue(func() error { return <-done })
	lines := bufio.NewScanner(out)
	for p.addresses["admin"] == "" {
		if !lines.Scan() {
			require.NoError(t, p.ended())
		}
		name, address, _ := strings.Cut(lines.Text(), ": ")
		p.addresses[name] = strings.Trim(strings.TrimPrefix(address, "http://"), "/")
	}
	go func() { _, _ = io.Copy(p.log, out) }() // the access log
	transport := &http.Transport{}
	p.stop = func() { // an idle connection would stay for a second
		transport.CloseIdleConnections()
		stop()
	}
	p.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		p.stop()
		require.NoError(t, p.ended())
		out.Close()
	})
	return p
}

// replace changes the configuration in one step.
func (p *process) replace(t *testing.T, text string) {
	t.Helper()
	next := p.file + ".next"
	require.NoError(t, os.WriteFile(next, []byte(text), 0o600))
	require.NoError(t, os.Rename(next, p.file))
}

// answer is a response with its body.
type answer struct {
	*http.Response

	body string
}

// get sends a request to the listener "http". fields are header fields "Name: value", and "Host" is
// the authority.
func (p *process) get(t *testing.T, method, path string, fields ...string) answer {
	t.Helper()
	a, err := p.send(t.Context(), method, "http://"+p.addresses["http"]+path, "", fields...)
	require.NoError(t, err)
	return a
}

// raw sends text to the listener "http" and returns all that the gateway answers until it closes the
// connection.
func (p *process) raw(t *testing.T, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", p.addresses["http"])
	require.NoError(t, err)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(conn, text) // the gateway may close before the end
	answer, _ := io.ReadAll(conn)
	return string(answer)
}

func (p *process) send(ctx context.Context, method, url, body string, fields ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if name == "Host" {
			req.Host = value
		}
		req.Header.Add(name, value)
	}
	rsp, err := p.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	return answer{rsp, string(text)}, err
}

// backend returns the address of a server that describes each request, after its name.
func backend(t *testing.T, name string) string {
	t.Helper()
	return serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Backend", name)
		fmt.Fprintf(w, "%s %s %s %s%s", name, r.Method, r.Host, r.RequestURI, body)
	})
}

func serverAt(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// service returns the line of a static service.
func service(name string, addresses ...string) string {
	return fmt.Sprintf("- {name: %s, static: {addresses: [\"%s\"]}}\n", name, strings.Join(addresses, `", "`))
}

// serviceTLS starts s with TLS, and returns a folder with certificates and the lines of a service "a"
// that uses them.
func serviceTLS(t *testing.T, s *httptest.Server) (dir, text string) {
	t.Helper()
	dir = t.TempDir()
	cert := certtest.New(t, "books.example")
	cert.Write(t, filepath.Join(dir, "books"), filepath.Join(dir, "ca.crt"))
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert.TLS(t)}, ClientCAs: cert.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
	s.StartTLS()
	return dir, `- name: a
  static: {addresses: ["` + s.Listener.Addr().String() + `"]}
  protocol: HTTP2
  tls:
    serverName: books.example
    caCertificates: ca.crt
    clientCertificate: {certificateChain: books.crt, privateKey: books.key}
`
}

func writeIn(t *testing.T, dir, text string) string {
	t.Helper()
	file := filepath.Join(dir, "gateway.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}
