package httplayer

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/layer/tcplayer"
)

// host is a server on a network in memory, for one bubble. Requests to /hold are answered
// after their release.
type host struct {
	network layertest.Network
	srv     *http.Server
	served  atomic.Int64
	mu      sync.Mutex
	letGo   chan struct{}
	held    atomic.Int64
}

func newHost(ctx context.Context, maxStreams int) *host {
	h := &host{letGo: make(chan struct{})}
	h.srv = &http.Server{Handler: h, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams}}
	h.srv.Protocols.SetHTTP1(true)
	h.srv.Protocols.SetUnencryptedHTTP2(true)
	l, err := h.network.Listen("tcp", "10.0.0.1:80")
	if err != nil {
		panic(err)
	}
	go h.srv.Serve(l)
	context.AfterFunc(ctx, func() { h.srv.Close() })
	return h
}

func (h *host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.served.Add(1)
	if r.URL.Path == "/hold" {
		h.mu.Lock()
		letGo := h.letGo
		h.mu.Unlock()
		h.held.Add(1)
		defer h.held.Add(-1)
		select {
		case <-letGo:
		case <-r.Context().Done():
			return
		}
	}
	pipe(w, r.Body)
}

func (h *host) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.letGo)
	h.letGo = make(chan struct{})
}

func TestEndpointConforms(t *testing.T) {
	const capacity = 3
	for name, opts := range map[string][]EndpointOption{
		"http1": {WithHTTP1(), WithMaxConns(capacity)},
		"aged":  {WithHTTP1(), WithMaxConns(capacity), WithMaxConnAge(time.Second)},
		"h2":    {WithHTTP2()},
		"auto":  {WithMaxConns(capacity)},
	} {
		t.Run(name, func(t *testing.T) {
			var hosts sync.Map // Endpoint → its host
			hostOf := func(svc Service) *host {
				h, _ := hosts.Load(svc)
				return h.(*host)
			}
			layertest.Run(t, layertest.ServiceOf[*http.Request, *http.Response]{
				New: func(ctx context.Context) Service {
					h := newHost(ctx, capacity)
					live, end := context.WithCancel(ctx)
					context.AfterFunc(ctx, end)
					e := NewEndpoint(live, "10.0.0.1:80", append(opts, WithDialContext(h.network.DialContext))...)
					svc := &endable{e, end}
					hosts.Store(svc, h)
					if err := e.Ready(ctx); err != nil {
						panic(err)
					}
					return svc
				},
				Request: func(i int) *http.Request {
					r, _ := http.NewRequest(http.MethodPost, fmt.Sprintf("http://web.default/%d", i), nil)
					return r
				},
				Fill: func(svc Service) func() {
					h := hostOf(svc)
					for range capacity {
						r, _ := http.NewRequest(http.MethodGet, "http://web.default/hold", nil)
						go func() {
							if rsp, err := svc.Call(context.Background(), r); err == nil {
								pipe(io.Discard, rsp.Body)
								rsp.Body.Close()
							}
						}()
					}
					synctest.Wait()
					require.EqualValues(t, capacity, h.held.Load())
					return h.release
				},
				Served: func(svc Service) int { return int(hostOf(svc).served.Load()) },
				Close:  func(svc Service) { svc.(*endable).end() },
			})
		})
	}
}

// endable is an Endpoint that can be ended by itself.
type endable struct {
	*Endpoint
	end context.CancelFunc
}

var _ layer.Describer = &endable{}

// A Server keeps the contract, with connections of one request.
func TestServerConforms(t *testing.T) {
	var network layertest.Network
	client := func(int) net.Conn {
		l, err := network.Listen("tcp", "10.0.0.2:0")
		if err != nil {
			panic(err)
		}
		defer l.Close()
		near, err := network.DialContext(context.Background(), "tcp", l.Addr().String())
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(near, "GET /length HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		far, err := l.Accept()
		if err != nil {
			panic(err)
		}
		return far
	}
	layertest.Run(t, layertest.ServiceOf[net.Conn, tcplayer.ByteCount]{
		New:     func(context.Context) tcplayer.Server { return NewServer(handledBy(shapes)) },
		Request: client,
	})
}
