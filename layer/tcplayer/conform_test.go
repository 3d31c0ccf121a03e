package tcplayer

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// home is an echo server on a network in memory. Its address can become unreachable.
type home struct {
	network layertest.Network
	served  atomic.Int64
	mu      sync.Mutex
	l       net.Listener
	blocked chan struct{} // closed when it no longer is
}

func newHome(ctx context.Context) *home {
	h := &home{}
	h.open()
	context.AfterFunc(ctx, h.close)
	return h
}

func (h *home) open() {
	l, err := h.network.Listen("tcp", addr)
	if err != nil {
		panic(err)
	}
	h.mu.Lock()
	h.l = l
	h.mu.Unlock()
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			h.served.Add(1)
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

func (h *home) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.l.Close()
}

// DialContext waits while the address is blocked.
func (h *home) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	h.mu.Lock()
	blocked := h.blocked
	h.mu.Unlock()
	if blocked != nil {
		select {
		case <-blocked:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return h.network.DialContext(ctx, network, addr)
}

// endpoint has a connect attempt in fill that continues until the address is
// reachable.
func (h *home) endpoint(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error)) *Endpoint {
	return NewEndpoint(ctx, addr, WithDialContext(dial), WithBackoff(steady()), WithConnectTimeout(time.Hour))
}

// fill makes the address unreachable, and leaves a connect attempt in progress.
func fill[Req, Rsp any](h *home, svc layer.Service[Req, Rsp], req Req) (free func()) {
	h.close()
	svc.Call(context.Background(), req)
	h.mu.Lock()
	h.blocked = make(chan struct{})
	h.mu.Unlock()
	h.open()
	time.Sleep(steady().Min)
	go svc.Ready(context.Background())
	synctest.Wait()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		close(h.blocked)
		h.blocked = nil
	}
}

// endable is a service that the test can close.
type endable[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	*home
	end context.CancelFunc
}

func TestEndpointConforms(t *testing.T) {
	type svc = *endable[Request, net.Conn]
	layertest.Run(t, layertest.ServiceOf[Request, net.Conn]{
		New: func(ctx context.Context) Service {
			h := newHome(ctx)
			dial := func(of context.Context, network, addr string) (net.Conn, error) {
				conn, err := h.DialContext(of, network, addr)
				if err == nil { // the test closes it
					context.AfterFunc(ctx, func() { conn.Close() })
				}
				return conn, err
			}
			live, end := context.WithCancel(ctx)
			return &endable[Request, net.Conn]{h.endpoint(live, dial), h, end}
		},
		Request: func(int) Request { return Request{} },
		Fill:    func(s Service) func() { return fill(s.(svc).home, s, Request{}) },
		Close:   func(s Service) { s.(svc).end() },
	})
}

func TestForwardConforms(t *testing.T) {
	type svc = *endable[net.Conn, ByteCount]
	var network layertest.Network
	client := func(int) net.Conn {
		l, err := network.Listen("tcp", "10.0.0.2:0")
		if err != nil {
			panic(err)
		}
		defer l.Close()
		near, _ := network.DialContext(context.Background(), "tcp", l.Addr().String())
		io.WriteString(near, "hello")
		closeWrite(near)
		far, _ := l.Accept()
		return far
	}
	layertest.Run(t, layertest.ServiceOf[net.Conn, ByteCount]{
		New: func(ctx context.Context) Server {
			h := newHome(ctx)
			live, end := context.WithCancel(ctx)
			return &endable[net.Conn, ByteCount]{Forward(h.endpoint(live, h.DialContext)), h, end}
		},
		Request: client,
		Fill:    func(s Server) func() { return fill(s.(svc).home, s, client(0)) },
		Served:  func(s Server) int { return int(s.(svc).served.Load()) },
		Close:   func(s Server) { s.(svc).end() },
	})
}
