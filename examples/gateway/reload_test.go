package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/gateway/internal/certtest"
	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// The configuration changes under load: services, routes, and settings of the listener. No
// request fails.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	a, b := backend(t, "a"), backend(t, "b")
	text := func(i int) string {
		return fmt.Sprintf(`
listeners: [{name: http, address: "127.0.0.1:0", maxHeaderBytes: %d}]
admin: {address: "127.0.0.1:0", tap: "off"}
accessLog: {format: "off"}
services:
- {name: a, static: {addresses: ["%s"]}, connectTimeout: %ds}
%sroutes:
- {name: all, backendRefs: [{name: %s}], responseHeaderModifier: {set: [{name: X-Generation, value: "%d"}]}}
`, 10_000+i%3, a, 1+i%2, service(fmt.Sprint("b", i), b), []string{"a", fmt.Sprint("b", i)}[i%2], i)
	}
	p := start(t, text(0))
	url := "http://" + p.addresses["http"] + "/"
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var sent, failed atomic.Int64
	for range 8 {
		clients.Go(func() {
			for ctx.Err() == nil {
				a, err := p.send(context.WithoutCancel(ctx), "POST", url, "body")
				sent.Add(1)
				if err != nil || a.StatusCode != http.StatusOK {
					failed.Add(1)
					t.Log(a.Response, err)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	reloads := 3 // each value that depends on i
	if os.Getenv("GOTOWER_TESTS") == "full" {
		reloads = 6
	}
	for i := 1; i <= reloads; i++ {
		p.replace(t, text(i))
		until(t, func() bool { return p.get(t, "GET", "/").Header.Get("X-Generation") == fmt.Sprint(i) })
	}
	until(t, func() bool { return sent.Load() > 100 })
	cancel()
	clients.Wait()
	t.Logf("%d requests", sent.Load())
	assert.Zero(t, failed.Load(), p.log)
}

// A file with mistakes changes nothing. SIGHUP loads an unchanged file again.
func TestReloadKeepsLastValid(t *testing.T) {
	text := head + "routes: [{name: all, directResponse: {status: 200, body: one}}]\n"
	p := start(t, text)
	p.replace(t, strings.Replace(text, "status: 200", "status: 2000", 1))
	until(t, func() bool { return strings.Contains(p.log.String(), "want an HTTP status from 200 to 599") })
	assert.Equal(t, "one", p.get(t, "GET", "/").body)
	p.replace(t, strings.Replace(text, "one", "two", 1))
	until(t, func() bool { return p.get(t, "GET", "/").body == "two" })
	until(t, func() bool { return strings.Count(p.log.String(), "configuration loaded") == 1 })
	self, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)
	require.NoError(t, self.Signal(syscall.SIGHUP))
	until(t, func() bool { return strings.Count(p.log.String(), "configuration loaded") == 2 })
}

// A configuration is loaded as soon as a file exists that it refers to.
func TestReloadMissingFile(t *testing.T) {
	t.Parallel()
	text := head + "services: [{name: a, static: {addresses: [\"127.0.0.1:1\"]}, tls: {serverName: a, caCertificates: ca.crt}}]\n" +
		"routes: [{name: all, directResponse: {status: 200, body: two}}]\n"
	p := start(t, head+"routes: [{name: all, directResponse: {status: 200, body: one}}]\n")
	p.replace(t, text)
	until(t, func() bool { return strings.Contains(p.log.String(), "want a file that can be read") })
	assert.Equal(t, "one", p.get(t, "GET", "/").body)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(p.file), "ca.crt"), certtest.New(t, "a").CA, 0o600))
	until(t, func() bool { return p.get(t, "GET", "/").body == "two" })
}

// A valid configuration that could not be loaded is loaded again without a change.
func TestReloadTriesAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	require.NoError(t, os.WriteFile(file, []byte(head+"routes: []\n"), 0o600))
	c, err := config.Load(file)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		var loads []time.Duration
		began := time.Now()
		r := &reloader{parse: func() (*config.Config, error) { return config.Load(file) }, log: slog.New(slog.DiscardHandler), every: time.Second / 2, started: c, load: func(*config.Config) error {
			loads = append(loads, time.Since(began))
			if len(loads) < 3 {
				return errors.New("the address is in use")
			}
			return nil
		}, loaded: func(error) {}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		signals := make(chan os.Signal, 1)
		signals <- syscall.SIGHUP
		r.run(ctx, signals)
		assert.Equal(t, []time.Duration{0, 5 * time.Second, 10 * time.Second}, loads)
	})
}

// Fields that are read only at start are reported, and do not make the gateway unready.
func TestReloadNeedsRestart(t *testing.T) {
	t.Parallel()
	text := head + "routes: [{name: all, directResponse: {status: 200, body: one}}]\n"
	p := start(t, text)
	p.replace(t, strings.Replace(text, "one", "two", 1)+"drainTimeout: 1s\nkubernetes: {}\n")
	until(t, func() bool { return p.get(t, "GET", "/").body == "two" })
	until(t, func() bool { return strings.Contains(p.log.String(), `fields="[drainTimeout kubernetes]"`) })
	until(t, func() bool {
		a, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/readyz", "")
		return err == nil && a.StatusCode == http.StatusOK
	})
}

// A rate limit keeps its state if another route changes.
func TestReloadKeepsState(t *testing.T) {
	t.Parallel()
	text := head + `
routes:
- {name: limited, matches: [{path: {exact: /limited}}], directResponse: {status: 200}, rateLimit: {requestsPerSecond: 0.001, burst: 1}}
- {name: all, directResponse: {status: 200, body: one}}
`
	p := start(t, text)
	assert.Equal(t, http.StatusOK, p.get(t, "GET", "/limited").StatusCode)
	p.replace(t, strings.Replace(text, "one", "two", 1))
	until(t, func() bool { return p.get(t, "GET", "/").body == "two" })
	assert.Equal(t, http.StatusTooManyRequests, p.get(t, "GET", "/limited").StatusCode)
}

// A route stays the same until its configuration changes, or a service to which it refers is made again.
func TestReloadKeepsRoutes(t *testing.T) {
	t.Parallel()
	parse := func(text string) *config.Config {
		c, err := config.Parse("gateway.yaml", []byte(text))
		require.NoError(t, err)
		return c
	}
	text := head + `
defaults: {routes: {retry: {codes: [502]}}}
services:
- {name: a, static: {addresses: ["10.0.0.1:80"]}}
- {name: b, static: {addresses: ["10.0.0.2:80"]}}
- {name: c, static: {addresses: ["10.0.0.3:80"]}}
rateLimitService: {backendRef: {name: c}, domain: x}
routes:
- {name: a, backendRefs: [{name: a}]}
- {name: b, backendRefs: [{name: b}]}
- {name: c, backendRefs: [{name: b}], globalRateLimits: [{actions: [{remoteAddress: {}}]}]}
- {name: d, backendRefs: [{name: b}], retry: {attempts: 1}}
`
	g, err := newGateway(t.Context(), parse(text), nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for _, change := range []struct{ old, now, changed string }{
		{"", "", ""},
		{"10.0.0.1", "10.0.0.9", ""},
		{"{name: a, static", "{name: a, queue: {capacity: 7}, static", ""},
		{"{name: a, backend", "{name: a, maxRequests: 5, backend", "a"},
		{"{name: a, static", "{name: a, protocol: HTTP2, static", "a"},
		{"{name: c, static", "{name: c, protocol: HTTP2, static", "c"},
		{"domain: x", "domain: y", "c"},
		{"[502]", "[503]", "abc"},
	} {
		require.NoError(t, g.load(t.Context(), parse(text)))
		before := g.current.Load()
		require.NoError(t, g.load(t.Context(), parse(strings.Replace(text, change.old, change.now, 1))))
		changed := ""
		for i, r := range g.current.Load().profile.Routes {
			if r.Value != before.profile.Routes[i].Value {
				changed += r.Name
			}
		}
		assert.Equal(t, change.changed, changed, "%+v", change)
	}
}

// The router may make a route when later configurations have already replaced it and its service.
func TestReloadReplacedRoute(t *testing.T) {
	t.Parallel()
	parse := func(name string) *config.Config {
		c, err := config.Parse("gateway.yaml", []byte(head+fmt.Sprintf("services: [%s]\nroutes: [{name: %s, backendRefs: [{name: %s}]}]\n",
			"{name: "+name+", directResponse: {status: 200}}", name, name)))
		require.NoError(t, err)
		return c
	}
	g, err := newGateway(t.Context(), parse("old"), nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	old := g.current.Load().profile.Routes[0]
	require.NoError(t, g.load(t.Context(), parse("new")))
	require.NoError(t, g.load(t.Context(), parse("newer")))
	svc := g.newRoute(old, g.newBackend(t.Context(), &old.Backends[0]))
	rsp, err := svc.Call(t.Context(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, rsp.StatusCode)
}

// Listeners are opened and closed. Open requests of a closed one end.
func TestReloadListeners(t *testing.T) {
	t.Parallel()
	entered, end := make(chan struct{}), make(chan struct{})
	slow := serverAt(t, func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-end
		_, _ = io.WriteString(w, "late")
	})
	const listener = `{name: two, address: "127.0.0.1:0"}`
	text := strings.Replace(head, "}]", "}, "+listener+"]", 1) + "services:\n" + service("slow", slow) + "routes: [{name: all, backendRefs: [{name: slow}]}]\n"
	p := start(t, text)
	got := make(chan string, 1)
	go func() {
		a, err := p.send(context.Background(), "GET", "http://"+p.addresses["two"]+"/", "")
		got <- fmt.Sprint(a.body, err)
	}()
	<-entered
	p.replace(t, strings.Replace(text, ", "+listener, "", 1))
	until(t, func() bool { return !dials(p.addresses["two"]) })
	close(end)
	assert.Equal(t, "late<nil>", <-got)
}

func dials(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// TLS with HTTP/1.1 and HTTP/2, certificates of clients, and a certificate that is replaced.
func TestListenerTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := certtest.New(t, "books.example"), certtest.New(t, "books.example")
	first.Write(t, filepath.Join(dir, "books"), filepath.Join(dir, "ca.crt"))
	file := filepath.Join(dir, "gateway.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
listeners:
- name: https
  address: 127.0.0.1:0
  protocol: HTTPS
  tls:
    certificates: [{certificateChain: books.crt, privateKey: books.key}]
    clientValidation: {caCertificates: ca.crt, mode: Require}
admin: {address: "127.0.0.1:0", tap: "off"}
services:
`+service("a", serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-Proto"))
	}))+`
routes: [{name: all, backendRefs: [{name: a}]}]
`), 0o600))
	p := startFile(t, file)
	get := func(roots certtest.Cert, own []tls.Certificate, protocols func(*http.Protocols)) (string, error) {
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots.Pool(), ServerName: "books.example", Certificates: own}, Protocols: new(http.Protocols),
		}
		protocols(transport.Protocols)
		defer transport.CloseIdleConnections()
		rsp, err := (&http.Client{Transport: transport}).Get("https://" + p.addresses["https"] + "/")
		if err != nil {
			return "", err
		}
		defer rsp.Body.Close()
		text, err := io.ReadAll(rsp.Body)
		return rsp.Proto + " " + string(text), err
	}
	h1, h2 := func(p *http.Protocols) { p.SetHTTP1(true) }, func(p *http.Protocols) { p.SetHTTP2(true) }
	own := []tls.Certificate{first.TLS(t)}
	got, err := get(first, own, h1)
	require.NoError(t, err)
	assert.Equal(t, "HTTP/1.1 https", got)
	got, err = get(first, own, h2)
	require.NoError(t, err)
	assert.Equal(t, "HTTP/2.0 https", got)
	_, err = get(first, nil, h1)
	require.Error(t, err, "a client without a certificate")

	second.Write(t, filepath.Join(dir, "books"), filepath.Join(dir, "second.crt"))
	until(t, func() bool { _, err := get(second, own, h2); return err == nil })
	until(t, func() bool {
		return strings.Contains(p.log.String(), "GET https://books.example/ HTTP/2.0") || strings.Contains(p.log.String(), `"uri"`)
	})
}

// A listener can replace one with another address and the same port.
func TestReloadListenerAddress(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(freeport.Addr(t))
	require.NoError(t, err)
	text := func(address, body string) string {
		return strings.Replace(head, "127.0.0.1:0", address+":"+port, 1) + "routes: [{name: all, directResponse: {status: 200, body: " + body + "}}]\n"
	}
	p := start(t, text("", "one"))
	p.addresses["http"] = "127.0.0.1:" + port
	assert.Equal(t, "one", p.get(t, "GET", "/").body)
	for _, address := range []string{"127.0.0.1", "0.0.0.0"} {
		p.replace(t, text(address, address))
		until(t, func() bool {
			a, err := p.send(t.Context(), "GET", "http://127.0.0.1:"+port+"/", "")
			return err == nil && a.body == address
		})
	}
	assert.NotContains(t, p.log.String(), "not loaded")
}

// If the access log cannot be opened, the last configuration stays in use.
func TestReloadAccessLogError(t *testing.T) {
	t.Parallel()
	text := func(body, path string) string {
		return strings.Replace(head, `format: "off"`, "path: "+path, 1) + "routes: [{name: all, directResponse: {status: 200, body: " + body + "}}]\n"
	}
	dir := t.TempDir()
	p := start(t, text("one", filepath.Join(dir, "log")))
	assert.Equal(t, "one", p.get(t, "GET", "/").body)
	p.replace(t, text("two", filepath.Join(dir, "none", "log")))
	until(t, func() bool { return strings.Contains(p.log.String(), "not loaded") })
	assert.Equal(t, "one", p.get(t, "GET", "/").body)
	p.replace(t, text("three", filepath.Join(dir, "other")))
	until(t, func() bool { return p.get(t, "GET", "/").body == "three" })
	for name, lines := range map[string]int{"log": 2, "other": 1} {
		until(t, func() bool {
			got, err := os.ReadFile(filepath.Join(dir, name))
			return err == nil && bytes.Count(got, []byte("\n")) >= lines
		})
	}
}

// The PROXY protocol of a configured sender sets the address of the client. Other clients cannot set it.
func TestListenerProxyProtocol(t *testing.T) {
	p := start(t, strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", proxyProtocol: [127.0.0.0/8]}, {name: other, address: "127.0.0.1:0", proxyProtocol: [192.0.2.0/24]}]`, 1)+
		`routes: [{name: all, directResponse: {status: 200}, rateLimit: {requestsPerSecond: 0.001, burst: 1, per: Client}}]`)
	const request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	for client, want := range map[string]string{"192.0.2.1": "200", "192.0.2.2": "200"} {
		for _, status := range []string{want, "429"} {
			assert.Equal(t, status, raw(t, p.addresses["http"], "PROXY TCP4 "+client+" 127.0.0.1 1000 80\r\n"+request))
		}
	}
	assert.Equal(t, "200", raw(t, p.addresses["other"], request))
	assert.Equal(t, "400", raw(t, p.addresses["other"], "PROXY TCP4 192.0.2.1 127.0.0.1 1000 80\r\n"+request))
	assert.Equal(t, "429", raw(t, p.addresses["other"], request))
}

// raw sends bytes and returns the status of the response.
func raw(t *testing.T, address, text string) string {
	t.Helper()
	status, _ := rawBody(t, address, text)
	return status
}

func rawBody(t *testing.T, address, text string) (status, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer rsp.Body.Close()
	b, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return rsp.Status[:3], string(b)
}

// A request that two parsers may read differently reaches no service.
func TestListenerRejectsAmbiguousRequests(t *testing.T) {
	var reached atomic.Int64
	p := start(t, head+"services:\n"+service("a", serverAt(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) }))+
		"routes: [{name: all, backendRefs: [{name: a}]}]\n")
	const end = "Host: a\r\nConnection: close\r\n"
	for text, status := range map[string]string{
		"GET / HTTP/1.1\r\n" + end + "\r\n": "200",
		"POST / HTTP/1.1\r\n" + end + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n": "400",
		"GET / HTTP/1.1\n" + end + "\r\n":                                      "200",
		"GET / HTTP/1.1\r\n" + end + "X-A: b\r\n c\r\n\r\n":                    "400",
		"GET / HTTP/1.2\r\n" + end + "\r\n":                                    "200",
		"POST / HTTP/1.1\r\n" + end + "Content-Length : 5\r\n\r\nhello":        "400",
		"GET /\xff\xfe HTTP/1.1\r\n" + end + "\r\n":                            "200",
		"GET http://a/?a=\xc3\xa9 HTTP/1.1\r\n" + end + "\r\n":                 "200",
		"GET / HTTP/1.1\r\n" + end + strings.Repeat("X: y\r\n", 8000) + "\r\n": "431",
	} {
		reached.Store(0)
		assert.Equal(t, status, raw(t, p.addresses["http"], text), "%.60q", text)
		assert.Equal(t, status == "200", reached.Load() == 1, "%.60q", text)
	}
}

// An open request is served to its end, and retried, after SIGTERM. Meanwhile /readyz fails.
func TestDrain(t *testing.T) {
	var requests atomic.Int64
	entered, ending := make(chan struct{}), make(chan struct{})
	slow := serverAt(t, func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			close(entered)
			<-ending
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	p := start(t, head+"services:\n"+service("a", slow)+"routes: [{name: all, backendRefs: [{name: a}]}]\n")
	readyz := "http://" + p.addresses["admin"] + "/readyz"
	until(t, func() bool {
		a, err := p.send(t.Context(), "GET", readyz, "")
		require.NoError(t, err)
		return a.StatusCode == http.StatusOK
	})
	got := make(chan string, 1)
	go func() {
		a, err := p.send(context.Background(), "GET", "http://"+p.addresses["http"]+"/", "")
		if err != nil {
			got <- err.Error()
			return
		}
		got <- a.Status
	}()
	<-entered
	p.stop()
	until(t, func() bool { return !dials(p.addresses["http"]) })
	a, err := p.send(context.Background(), "GET", readyz, "")
	require.NoError(t, err)
	assert.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
	close(ending)
	assert.Equal(t, "200 OK", <-got)
	assert.EqualValues(t, 2, requests.Load())
	require.NoError(t, p.ended())
}

// A configuration that is loaded during the shutdown opens no listener again.
func TestLoadAfterShutdown(t *testing.T) {
	t.Parallel()
	c, err := config.Parse("gateway.yaml", []byte(head+"routes: [{name: all, directResponse: {status: 200}}]\n"))
	require.NoError(t, err)
	l := &listeners{
		log: slog.New(slog.DiscardHandler), open: make(map[string]*listener), challenges: new(challenges),
		counts: newResponses(prometheus.NewRegistry(), slog.New(slog.DiscardHandler)),
		service: func(*config.Listener) (httplayer.Service, []httplayer.ServerOption) {
			return httplayer.FromHandler(http.NotFoundHandler()), nil
		},
	}
	require.NoError(t, l.load(c))
	l.shutdown()
	require.ErrorContains(t, l.load(c), "shutting down")
	assert.Empty(t, l.addresses())
}

// An address in use is an error at the start.
func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	for _, text := range []string{
		strings.Replace(head, "127.0.0.1:0", l.Addr().String(), 1),
		strings.Replace(head, `admin: {address: "127.0.0.1:0"`, `admin: {address: "`+l.Addr().String()+`"`, 1),
	} {
		require.NoError(t, os.WriteFile(file, []byte(text+"routes: []\n"), 0o600))
		err = run(t.Context(), []string{"run", file}, io.Discard, io.Discard)
		require.ErrorContains(t, err, "listen tcp "+l.Addr().String())
	}
}

func TestCheckAndExplain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	require.NoError(t, os.WriteFile(file, []byte(head+`
services:
- {name: a, static: {addresses: ["10.0.0.1:80"]}}
- {name: b, dns: {name: "b.example:80"}}
routes:
- {name: books, matches: [{path: {prefix: /books}, method: GET, headers: [{name: X-A, exact: "1"}]}], backendRefs: [{name: a, weight: 3}, {name: b}]}
- {name: old, matches: [{path: {prefix: /old}}], requestRedirect: {path: {replaceFullPath: /books}}}
- {name: shop, hostnames: [shop.example], directResponse: {status: 200}}
`), 0o600))
	out := func(args ...string) string {
		var b bytes.Buffer
		require.NoError(t, run(t.Context(), args, &b, io.Discard))
		return b.String()
	}
	assert.Equal(t, file+" is valid\n", out("check", file))
	text := out("explain", file, "GET", "http://x.example/books/1", "-H", "X-A: 1")
	assert.Contains(t, text, "route    books\n")
	assert.Contains(t, text, "a 75%, b 25%")
	assert.Contains(t, text, "a: static [10.0.0.1:80], protocol Auto, EWMA")
	var none bytes.Buffer
	require.EqualError(t, run(t.Context(), []string{"explain", file, "GET", "http://x.example/books/1"}, &none, io.Discard), "no route matches the request")
	assert.Contains(t, none.String(), "none: status 404")
	assert.Contains(t, out("explain", file, "GET", "http://127.0.0.1/", "-H", "Host: shop.example"), "route    shop\n")
	assert.Contains(t, out("explain", file, "GET", "http://x.example/old"), "action   redirect 302\n")
	for _, args := range [][]string{{}, {"serve", file}, {"run"}, {"explain", file}, {"explain", file, "GET", "/books"}, {"explain", file, "GET", "ftp://a/"}, {"explain", file, "GET", "http://a/", "-H", "A"}} {
		require.ErrorContains(t, run(t.Context(), args, io.Discard, io.Discard), "want", args)
	}
	require.ErrorContains(t, run(t.Context(), []string{"explain", file, "GET", "http://a/", "-H"}, io.Discard, io.Discard), "flag needs an argument: -H")
	require.NoError(t, os.WriteFile(file, []byte(`
listeners: [{name: one, address: ":8001"}, {name: two, address: "127.0.0.1:8002"}]
routes: [{name: two, listeners: [two], directResponse: {status: 200}}]
`), 0o600))
	none.Reset()
	require.Error(t, run(t.Context(), []string{"explain", file, "GET", "http://x.example:8001/"}, &none, io.Discard))
	assert.Equal(t, "listener one:\n  route    none: status 404\n"+
		"  because  profiles   target=gateway:1 route=default\n             route      route=two failed=listener is \"two\"\n", none.String())
	assert.Contains(t, out("explain", file, "GET", "http://x.example:8002/"), "listener two:\n  route    two\n")
	assert.Equal(t, 2, strings.Count(out("explain", file, "GET", "http://x.example/"), ":\n  route "))
	require.EqualError(t, run(t.Context(), []string{"explain", file, "GET", "https://x.example/"}, io.Discard, io.Discard), "no listener serves https")
	require.NoError(t, os.WriteFile(file, []byte("routes: 1\n"), 0o600))
	require.ErrorContains(t, run(t.Context(), []string{"check", file}, io.Discard, io.Discard), "gateway.yaml:1:9: routes")
}

func TestExampleIsValid(t *testing.T) {
	require.NoError(t, run(t.Context(), []string{"check", "gateway.yaml"}, io.Discard, io.Discard))
}

// The admin listener serves health, metrics and the page.
func TestAdmin(t *testing.T) {
	p := start(t, head+"routes: []\n")
	require.Eventually(t, func() bool { // the admin listener opens before the file is loaded
		a, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/readyz", "")
		return err == nil && a.StatusCode == http.StatusOK
	}, 10*time.Second, time.Millisecond)
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n", "/metrics": "go_goroutines", "/": "<!doctype html>"} {
		a, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+path, "")
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, a.StatusCode, path)
		assert.Contains(t, strings.ToLower(a.body), want, path)
	}
}

// The metrics of a route count the requests of clients, and for each service of its split the
// attempts.
func TestMetrics(t *testing.T) {
	answer := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }
	p := start(t, head+"services:\n"+service("books", serverAt(t, answer))+service("next", serverAt(t, answer))+
		"routes: [{name: all, backendRefs: [{name: books, weight: 3}, {name: next}]}]\n")
	const n = 200
	for range n {
		require.Equal(t, "ok", p.get(t, "GET", "/").body)
	}
	a, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/metrics", "")
	require.NoError(t, err)
	count := func(target string) (requests int) {
		_, after, found := strings.Cut(a.body, "\ngotower_requests_total{route=\"all\",target=\""+target+"\"} ")
		require.True(t, found, target)
		_, err := fmt.Sscan(after, &requests)
		require.NoError(t, err)
		return requests
	}
	assert.Equal(t, n, count(""))
	assert.Equal(t, n, count("books")+count("next"))
	assert.Greater(t, count("books"), count("next"))
	assert.Contains(t, a.body, `gotower_endpoints{endpoint_state="ready",route="",target="books"} 1`)
}

// Servers get the client that a trusted proxy reports, and the access log has route and upstream.
func TestForwardedAndAccessLog(t *testing.T) {
	seen := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-For"))
	})
	rest := "services:\n" + service("books", seen) + "routes: [{name: all, backendRefs: [{name: books}]}]\n"
	const forged = "X-Forwarded-For: 192.0.2.7"
	p := start(t, strings.Replace(head, `accessLog: {format: "off"}`, "accessLog: {format: json}", 1)+rest)
	assert.Equal(t, "127.0.0.1", p.get(t, "GET", "/", forged).body)
	until(t, func() bool { return strings.Contains(p.log.String(), `"route":"all"`) })
	assert.Contains(t, p.log.String(), `"upstream":"books"`)
	assert.Contains(t, p.log.String(), `"status":200`)
	p = start(t, strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", trustedProxies: [127.0.0.0/8]}]`, 1)+rest)
	assert.Equal(t, "192.0.2.7, 127.0.0.1", p.get(t, "GET", "/", forged).body)
}

// A proxy in front of the gateway may terminate TLS.
func TestForwardedProto(t *testing.T) {
	rest := "services:\n- {name: a, static: {addresses: [\"" + backend(t, "a") + `"]}, sessionPersistence: {sessionName: s}}
routes:
- {name: moved, matches: [{path: {exact: /old}}], requestRedirect: {path: {replaceFullPath: /new}}}
- {name: all, backendRefs: [{name: a}]}
`
	trusting := strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", trustedProxies: [127.0.0.0/8]}]`, 1)
	for _, c := range []struct {
		head, proto string
		secure      bool
	}{{head, "https", false}, {trusting, "https", true}, {trusting, "http", false}, {trusting, "ftp", false}} {
		p := start(t, c.head+rest)
		forwarded := "X-Forwarded-Proto: " + c.proto
		assert.Equal(t, c.secure, strings.Contains(p.get(t, "GET", "/", forwarded).Header.Get("Set-Cookie"), "Secure"))
		assert.Equal(t, c.secure, strings.HasPrefix(p.get(t, "GET", "/old", forwarded).Header.Get("Location"), "https://"))
	}
}

// What a reload keeps does not keep the rest of an old configuration in memory: a route, a service, and an
// open TCP connection.
func TestReloadFreesOldConfiguration(t *testing.T) {
	t.Parallel()
	parse := func(maxRequests int) *config.Config {
		c, err := config.Parse("gateway.yaml", fmt.Appendf(nil, `
listeners: [{name: http, address: "127.0.0.1:0"}, {name: tcp, protocol: TCP, address: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", tap: "off"}
services: [{name: a, static: {addresses: ["127.0.0.1:1"]}}]
routes:
- {name: same, matches: [{path: {prefix: /same}}], backendRefs: [{name: a}]}
- {name: other, maxRequests: %d, backendRefs: [{name: a}]}
tcpRoutes: [{name: lines, backendRefs: [{name: a}]}]
`, maxRequests))
		require.NoError(t, err)
		return c
	}
	g, err := newGateway(t.Context(), parse(1), nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	first := g.current.Load()
	generations := weak.Make(first)
	routes := weak.Make(&first.Routes[0])
	services := weak.Make(&first.Services[0])
	route := first.routes["same"]

	connection := new(tcpConnection)
	server := &tcpRoutes{tcpBackends{g}, g, "tcp"}
	_, err = server.Call(context.WithValue(t.Context(), tcpConnectionKey{}, connection), tcplayer.Request{})
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	require.NoError(t, g.load(t.Context(), parse(2)))
	require.Same(t, route, g.current.Load().routes["same"])
	require.Eventually(t, func() bool {
		runtime.GC()
		return generations.Value() == nil && routes.Value() == nil && services.Value() == nil
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, "lines", connection.decision.route.Name)
}

// Errors have problem details.
func TestProblemDetails(t *testing.T) {
	a := start(t, head+"routes: []\n").get(t, "GET", "/")
	assert.Equal(t, "application/problem+json", a.Header.Get("Content-Type"))
	assert.JSONEq(t, `{"type":"about:blank","title":"Not Found","status":404,"detail":"no route matches the request"}`, a.body)
}

// The endpoint of a failed health check gets no requests. A session stays at its endpoint.
func TestServiceHealthAndSession(t *testing.T) {
	var sick atomic.Bool
	member := func(name string) string {
		return serverAt(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Backend", name)
			if r.URL.Path == "/healthz" && name == "1" && sick.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
	}
	p := start(t, head+`
services:
- name: a
  static: {addresses: ["`+member("1")+`", "`+member("2")+`"]}
  healthCheck: {path: /healthz, interval: 10ms, unhealthyThreshold: 2}
- name: b
  static: {addresses: ["`+member("1")+`", "`+member("2")+`"]}
  sessionPersistence: {sessionName: s}
routes:
- {name: b, matches: [{path: {prefix: /b}}], backendRefs: [{name: b}]}
- {name: all, backendRefs: [{name: a}]}
`)
	used := func() map[string]bool {
		all := map[string]bool{}
		for range 50 {
			all[p.get(t, "GET", "/").Header.Get("X-Backend")] = true
		}
		return all
	}
	until(t, func() bool { return len(used()) == 2 })
	sick.Store(true)
	until(t, func() bool { return len(used()) == 1 })
	assert.True(t, used()["2"])

	for _, name := range []string{"1", "2"} { // a session may move before both servers are connected
		until(t, func() bool { return p.get(t, "GET", "/b").Header.Get("X-Backend") == name })
	}
	first := p.get(t, "GET", "/b")
	require.Len(t, first.Cookies(), 1)
	cookie := "Cookie: s=" + first.Cookies()[0].Value
	for range 20 {
		assert.Equal(t, first.Header.Get("X-Backend"), p.get(t, "GET", "/b", cookie).Header.Get("X-Backend"))
	}
}

// A health check has the host, the method, the fields and the status of a server that requires them.
func TestServiceHealthRequest(t *testing.T) {
	member := func(name string, status int) string {
		return serverAt(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Backend", name)
			if r.URL.Path == "/up" {
				assert.Equal(t, "HEAD books.example:81 1", r.Method+" "+r.Host+" "+r.Header.Get("X-Probe"))
				w.WriteHeader(status)
			}
		})
	}
	p := start(t, head+`
services:
- name: a
  static: {addresses: ["`+member("1", http.StatusUnauthorized)+`", "`+member("2", http.StatusOK)+`"]}
  healthCheck: {path: /up, method: HEAD, hostname: "books.example:81", headers: [{name: X-Probe, value: "1"}], expectedStatuses: [401], interval: 10ms}
routes: [{name: all, backendRefs: [{name: a}]}]
`)
	until(t, func() bool {
		for range 20 {
			if p.get(t, "GET", "/").Header.Get("X-Backend") != "1" {
				return false
			}
		}
		return true
	})
}

// Health checks reach an endpoint also while its limit of requests is full.
func TestServiceHealthAtLimit(t *testing.T) {
	var checks atomic.Int64
	began, end := make(chan struct{}), make(chan struct{})
	addr := serverAt(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			checks.Add(1)
			return
		}
		close(began)
		<-end
	})
	p := start(t, head+`
services:
- {name: a, static: {addresses: ["`+addr+`"]}, circuitBreakers: {maxRequests: 1}, healthCheck: {path: /healthz, interval: 10ms}}
routes: [{name: all, backendRefs: [{name: a}]}]
`)
	done := make(chan error)
	go func() {
		_, err := p.send(t.Context(), "GET", "http://"+p.addresses["http"]+"/", "")
		done <- err
	}()
	<-began
	before := checks.Load()
	until(t, func() bool { return checks.Load() > before+5 })
	close(end)
	require.NoError(t, <-done)
}
