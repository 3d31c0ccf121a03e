package sidecar_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// spoken runs a test for each way in which a client may send requests to the proxy. ask sends a
// request for web.example and returns the response.
func spoken(t *testing.T, test func(t *testing.T, ask func(t asking, proxy string) (status int, body string))) {
	for name, client := range map[string]func(testing.TB, string) *http.Client{
		"HTTP1": h1Client, "absolute": absoluteClient, "HTTP2": h2Client,
	} {
		t.Run(name, func(t *testing.T) {
			var c *http.Client
			test(t, func(now asking, proxy string) (int, string) {
				now.Helper()
				if c == nil {
					c = client(t, proxy)
				}
				rsp, err := c.Get("http://web.example/")
				if err != nil {
					return 0, err.Error()
				}
				defer rsp.Body.Close()
				body, err := io.ReadAll(rsp.Body)
				if err != nil {
					return 0, err.Error()
				}
				if why := rsp.Header.Get("L5d-Proxy-Error"); why != "" {
					if t, ok := now.(testing.TB); ok {
						t.Log(why)
					}
				}
				return rsp.StatusCode, string(body)
			})
		})
	}
}

func h1Client(t testing.TB, addr string) *http.Client {
	t.Helper()
	return (&testProxy{Proxy: &sidecar.Proxy{Addr: addr}}).client(t)
}

// absoluteClient sends the absolute URL, as clients of a forward proxy do.
func absoluteClient(t testing.TB, addr string) *http.Client {
	t.Helper()
	tr := &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return &url.URL{Scheme: "http", Host: addr}, nil }}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// impatient shortens the time that requests and connections wait for an endpoint, for tests without
// endpoints.
func impatient(c *sidecar.Config) {
	c.Outbound.HTTPQueue.FailFast, c.Outbound.TCPQueue.FailFast = 250*time.Millisecond, 250*time.Millisecond
}

// balanced returns a controller that serves web.example, and a proxy whose connections all go to
// that service.
func balanced(t testing.TB, change ...func(*sidecar.Config)) (*script, *testProxy) {
	t.Helper()
	ctl := newScript(t)
	ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
	return ctl, newTestProxy(t, ctl.addr, append([]func(*sidecar.Config){toService}, change...)...)
}

// later sends a request in the background.
func later(t testing.TB, ask func(asking, string) (int, string), proxy string) <-chan string {
	out := make(chan string, 1)
	go func() {
		status, body := ask(t, proxy)
		out <- http.StatusText(status) + " " + body
	}()
	return out
}

func TestB1Resolution(t *testing.T) {
	spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
		ctl, tn := balanced(t)
		answer := later(t, ask, tn.Addr)
		ctl.next(t, webName).add(t, endpointAt(backend(t, "a")))
		require.Equal(t, "OK a web.example / ", <-answer)
	})
}

func TestB2ResolutionCache(t *testing.T) {
	spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
		ctl, tn := balanced(t)
		answer := later(t, ask, tn.Addr)
		ctl.next(t, webName).add(t, endpointAt(backend(t, "a")))
		<-answer
		for range 3 {
			status, _ := ask(t, tn.Addr)
			require.Equal(t, http.StatusOK, status)
		}
		ctl.none(t)
	})
}

func TestB3StreamReopened(t *testing.T) {
	spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
		ctl, tn := balanced(t)
		answer := later(t, ask, tn.Addr)
		q := ctl.next(t, webName)
		q.add(t, endpointAt(backend(t, "a")))
		require.Equal(t, "OK a web.example / ", <-answer)

		q.end(t, nil)
		_, body := ask(t, tn.Addr)
		require.Equal(t, "a web.example / ", body, "the last endpoints are still used")
		q = ctl.next(t, webName)
		_, body = ask(t, tn.Addr)
		require.Equal(t, "a web.example / ", body)
		q.add(t, endpointAt(backend(t, "b")))
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			_, body := ask(c, tn.Addr)
			assert.Equal(c, "b web.example / ", body)
		}, soon, time.Millisecond, "the new endpoints replace them")
	})
}

func TestB4FailFastWithoutEndpoints(t *testing.T) {
	t.Parallel()
	for name, exists := range map[string]bool{"no endpoints": true, "does not exist": false} {
		t.Run(name, func(t *testing.T) {
			spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
				ctl, tn := balanced(t, impatient)
				answer := later(t, ask, tn.Addr)
				ctl.next(t, webName).noEndpoints(t, exists)
				require.Equal(t, "Gateway Timeout ", <-answer)
				tn.shows(t, `outbound_http_errors_total{error="failfast"} 1`)
			})
		})
	}
}

// An empty set after an outage is used after 30 s, or after another update.
func TestB5UpdatesAfterReconnect(t *testing.T) {
	t.Parallel()
	for name, exists := range map[string]bool{"empty": true, "does not exist": false} {
		t.Run(name, func(t *testing.T) {
			spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
				ctl, tn := balanced(t, impatient)
				answer := later(t, ask, tn.Addr)
				q := ctl.next(t, webName)
				a := endpointAt(backend(t, "a"))
				q.add(t, a)
				<-answer // which may have waited for too long
				require.EventuallyWithT(t, func(c *assert.CollectT) {
					status, body := ask(c, tn.Addr)
					assert.Equal(c, http.StatusOK, status)
					assert.Equal(c, "a web.example / ", body)
				}, soon, time.Millisecond)
				q.end(t, nil)
				q = ctl.next(t, webName)
				q.noEndpoints(t, exists)
				status, _ := ask(t, tn.Addr)
				require.Equal(t, http.StatusOK, status)
				q.add(t, a)
				q.noEndpoints(t, exists)
				require.EventuallyWithT(t, func(c *assert.CollectT) {
					status, _ := ask(c, tn.Addr)
					assert.Equal(c, http.StatusGatewayTimeout, status)
				}, soon, time.Millisecond)
			})
		})
	}
}

func TestB6NamesOutsideSuffixes(t *testing.T) {
	spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
		ctl := newScript(t)
		tn := newTestProxy(t, ctl.addr, func(c *sidecar.Config) {
			services(c)
			c.Outbound.Origin = fixed(backend(t, "outside"))
		})
		status, body := ask(t, tn.Addr)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "outside web.example / ", body)
		ctl.none(t)
	})
}

// The controller has no profile for the address, so it is not a service.
func TestB7UnknownTargets(t *testing.T) {
	spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
		ctl := newScript(t)
		addr := backend(t, "original")
		ctl.refuse(addr, errInvalid)
		tn := newTestProxy(t, ctl.addr, func(c *sidecar.Config) {
			c.Control.ProfileNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			c.Outbound.Origin = fixed(addr)
		})
		status, body := ask(t, tn.Addr)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "original web.example / ", body)
		ctl.none(t)
	})
}

func TestB8SilentController(t *testing.T) {
	t.Parallel()
	spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
		ctl, tn := balanced(t, impatient)
		answer := later(t, ask, tn.Addr)
		ctl.next(t, webName)
		require.Equal(t, "Gateway Timeout ", <-answer)
	})
}

// A fail-fast timeout of 0 means no waiting instead of waiting without a limit.
func TestZeroFailFast(t *testing.T) {
	none := func(c *sidecar.Config) { c.Outbound.HTTPQueue.FailFast, c.Outbound.TCPQueue.FailFast = 0, 0 }
	spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
		_, tn := balanced(t, none)
		require.Contains(t, []string{"Gateway Timeout ", "Service Unavailable "}, <-later(t, ask, tn.Addr))
	})
	t.Run("TCP", func(t *testing.T) {
		_, tn := balanced(t, none)
		w := dialWire(t, tn.Addr)
		say(w, "\x00 this is no HTTP, and is more than 14 bytes")
		_, err := w.in.ReadByte()
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

func TestB9LateController(t *testing.T) {
	spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
		addr := freeAddr(t)
		tn := newTestProxy(t, addr, func(c *sidecar.Config) {
			c.Outbound.HTTPQueue.FailFast = soon
			c.Control.ProfileInitial = soon
			c.Control.ProfileNetworks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
			c.Outbound.Origin = fixed(service)
		})
		answer := later(t, ask, tn.Addr)
		control := h1Client(t, tn.Admin)
		require.EventuallyWithT(t, func(c *assert.CollectT) { // the connection was refused, and the proxy knows that
			_, tree := get(c, control, "http://"+tn.Admin+"/stack")
			assert.Contains(c, tree, "connection refused")
		}, soon, time.Millisecond)
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		ctl := serveScript(t, l)
		ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
		ctl.next(t, webName).add(t, endpointAt(backend(t, "a")))
		require.Equal(t, "OK a web.example / ", <-answer)
	})
}

// The only endpoint fails, and the controller does not report that. A request waits until an
// endpoint is added.
func TestB10WaitForEndpoint(t *testing.T) {
	spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
		ctl, tn := balanced(t, func(c *sidecar.Config) { c.Outbound.HTTPQueue.FailFast = soon })
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { say(w, "first") })}
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		answer := later(t, ask, tn.Addr)
		q := ctl.next(t, webName)
		q.add(t, endpointAt(l.Addr().String()))
		require.Equal(t, "OK first", <-answer)
		require.NoError(t, srv.Close())
		<-served

		// The idle connection may break under the first request, which is then answered with 502.
		// The next ones wait.
		control := h1Client(t, tn.Admin)
		answer = later(t, ask, tn.Addr)
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			select {
			case got := <-answer:
				assert.Equal(t, "Bad Gateway ", got)
				answer = later(t, ask, tn.Addr)
				assert.Fail(c, "it was answered")
			default:
				_, tree := get(c, control, "http://"+tn.Admin+"/stack")
				assert.Contains(c, tree, "connection refused")
			}
		}, soon, time.Millisecond)
		q.add(t, endpointAt(backend(t, "second")))
		require.Equal(t, "OK second web.example / ", <-answer)
	})
}

// An HTTP/2 request uses HTTP/2 even to an endpoint without a hint, because the application may not
// speak anything else.
func TestHTTP2WithoutHint(t *testing.T) {
	t.Parallel()
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	app.Config.Protocols = new(http.Protocols)
	app.Config.Protocols.SetUnencryptedHTTP2(true)
	app.Start()
	t.Cleanup(app.Close)
	addr := ways(t, app.Listener.Addr().String())["outbound"]
	status, body := get(t, h2Client(t, addr), "http://web.example/")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "HTTP/2.0", body)
}
