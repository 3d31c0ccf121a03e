package layertest_test

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

type httpService = layer.Service[*http.Request, *http.Response]

// endpoint is a net/http client with its server, connected by a Network.
type endpoint struct {
	httpService
	served atomic.Int64

	mu   sync.Mutex
	hold chan struct{} // requests to /hold wait for it
}

const slots = 4

func newEndpoint(ctx context.Context, t *testing.T, protocols *http.Protocols) *endpoint {
	t.Helper()
	var n layertest.Network
	l, err := n.Listen("tcp", "10.0.0.1:80")
	require.NoError(t, err)
	e := &endpoint{hold: make(chan struct{})}
	server := &http.Server{Handler: e, Protocols: protocols}
	go server.Serve(l)
	transport := &http.Transport{DialContext: n.DialContext, Protocols: protocols}
	context.AfterFunc(ctx, func() {
		transport.CloseIdleConnections()
		assert.NoError(t, server.Close())
	})
	leaf := layer.Func[*http.Request, *http.Response](func(ctx context.Context, req *http.Request) (*http.Response, error) {
		return transport.RoundTrip(req.WithContext(ctx))
	})
	e.httpService = layer.Limit[*http.Request, *http.Response](slots)(leaf)
	return e
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.served.Add(1)
	time.Sleep(time.Millisecond)
	if r.URL.Path == "/hold" {
		e.mu.Lock()
		hold := e.hold
		e.mu.Unlock()
		select {
		case <-hold:
		case <-r.Context().Done():
			return
		}
	}
	io.Copy(w, r.Body)
}

// fill takes every slot with a request that the server holds.
func (e *endpoint) fill(ctx context.Context, t *testing.T) (free func()) {
	t.Helper()
	hold := make(chan struct{})
	e.mu.Lock()
	e.hold = hold
	e.mu.Unlock()
	before := e.served.Load()
	for range slots {
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://10.0.0.1/hold", nil)
			if !assert.NoError(t, err) {
				return
			}
			rsp, err := e.Call(ctx, req)
			if err == nil { // an error means that the check has ended
				io.Copy(io.Discard, rsp.Body)
				rsp.Body.Close()
			}
		}()
	}
	time.Sleep(10 * time.Millisecond)
	require.EqualValues(t, slots, e.served.Load()-before)
	return func() {
		close(hold)
		time.Sleep(10 * time.Millisecond)
	}
}

func TestConformEndpoint(t *testing.T) {
	for _, name := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(name, func(t *testing.T) {
			protocols := new(http.Protocols)
			protocols.SetHTTP1(name == "HTTP/1.1")
			protocols.SetUnencryptedHTTP2(name == "HTTP/2.0")
			var ctx context.Context // of the endpoint under test
			layertest.Run(t, layertest.ServiceOf[*http.Request, *http.Response]{
				New: func(c context.Context) httpService {
					ctx = c
					return newEndpoint(c, t, protocols)
				},
				Request: func(int) *http.Request {
					req, err := http.NewRequest(http.MethodPost, "http://10.0.0.1/", nil)
					require.NoError(t, err)
					return req
				},
				Fill:   func(svc httpService) func() { return svc.(*endpoint).fill(ctx, t) },
				Served: func(svc httpService) int { return int(svc.(*endpoint).served.Load()) },
			})
		})
	}
}
