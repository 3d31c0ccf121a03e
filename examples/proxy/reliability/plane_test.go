package reliability

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/controller"
)

// webName is the authority in requests to the upstreams.
const webName = "web.test:80"

// plane is the control plane: a destination controller that can go away.
type plane struct {
	addr string
	cfg  controller.Config
	*controller.Controller

	stop func()
}

// newPlane serves webName with the given addresses.
func newPlane(t testing.TB, addrs ...string) *plane {
	t.Helper()
	p := &plane{addr: "127.0.0.1:0"}
	p.cfg = served(webName, controller.Unknown, addrs...)
	p.start(t)
	t.Cleanup(func() { p.stop() })
	return p
}

// served returns the configuration for name with these addresses.
func served(name string, protocol controller.Protocol, addrs ...string) controller.Config {
	var d controller.Destination
	for _, a := range addrs {
		d.Endpoints = append(d.Endpoints, controller.Endpoint{Addr: netip.MustParseAddrPort(a), Protocol: protocol})
	}
	return controller.Config{Destinations: map[string]controller.Destination{name: d}}
}

// start serves at the same address as before.
func (p *plane) start(t testing.TB) {
	t.Helper()
	p.Controller = controller.New(nil)
	require.NoError(t, p.Set(p.cfg))
	l := listenAt(t, p.addr)
	p.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// mayBeSentAgain makes failed requests with this method retryable.
func (p *plane) mayBeSentAgain(t testing.TB, method string) {
	t.Helper()
	d := p.cfg.Destinations[webName]
	d.Profile = &controller.Profile{
		Routes: []controller.Route{{Name: "again", Match: controller.Match{Method: method}, Retryable: true, RetryNonIdempotent: true}},
		Budget: &controller.RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second},
	}
	p.cfg.Destinations[webName] = d
	require.NoError(t, p.Set(p.cfg))
}

// listenAt listens on addr, and waits until it is free.
func listenAt(t testing.TB, addr string) (l net.Listener) {
	t.Helper()
	require.Eventually(t, func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", addr)
		return err == nil
	}, patience, time.Millisecond)
	return l
}

// upstream is an HTTP/1.1 and HTTP/2 server that can be restarted.
type upstream struct {
	addr     string
	handler  http.Handler
	requests atomic.Int64
	last     atomic.Int64 // when the last request arrived, in Unix nanoseconds

	srv  *http.Server
	done chan error
}

// newUpstream returns a server that runs until the test ends. A nil handler responds immediately.
func newUpstream(t testing.TB, h http.Handler) *upstream {
	t.Helper()
	if h == nil {
		h = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	}
	u := &upstream{addr: "127.0.0.1:0", handler: h}
	u.start(t)
	t.Cleanup(func() {
		_ = u.srv.Close()
		<-u.done
	})
	return u
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.requests.Add(1)
	u.last.Store(time.Now().UnixNano())
	u.handler.ServeHTTP(w, r)
}

func (u *upstream) start(t testing.TB) {
	t.Helper()
	l := listenAt(t, u.addr)
	u.addr = l.Addr().String()
	u.srv = &http.Server{ReadHeaderTimeout: patience, Handler: u, Protocols: new(http.Protocols)}
	u.srv.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1000} // on the proxy's single connection
	u.srv.Protocols.SetHTTP1(true)
	u.srv.Protocols.SetUnencryptedHTTP2(true)
	u.done = make(chan error, 1)
	srv, done := u.srv, u.done
	go func() { done <- srv.Serve(l) }()
}

func (u *upstream) restart(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, u.srv.Shutdown(ctx))
	<-u.done
	u.start(t)
}

// addrs returns the addresses of all.
func addrs(all []*upstream) (list []string) {
	for _, u := range all {
		list = append(list, u.addr)
	}
	return list
}
