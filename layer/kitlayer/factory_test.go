package kitlayer_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/go-kit/kit/endpoint"
	"github.com/go-kit/kit/sd"
	kithttp "github.com/go-kit/kit/transport/http"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
	"github.com/gotower/gotower/resolve/kit"
)

// sumFactory makes clients of go-kit's HTTP transport with separate
// connections.
func sumFactory(instance string) (endpoint.Endpoint, io.Closer, error) {
	u, err := url.Parse("http://" + instance)
	if err != nil {
		return nil, nil, err
	}
	transport := &http.Transport{}
	client := kithttp.NewClient(http.MethodPost, u, kithttp.EncodeJSONRequest,
		func(_ context.Context, r *http.Response) (any, error) {
			var rsp sumResponse
			err := json.NewDecoder(r.Body).Decode(&rsp)
			return rsp, err
		},
		kithttp.SetClient(&http.Client{Transport: transport}))
	return client.Endpoint(), closer(func() { transport.CloseIdleConnections() }), nil
}

type closer func()

func (c closer) Close() error {
	c()
	return io.ErrClosedPipe
}

// An Instancer and a Factory of go-kit are balanced. One instance is down, and
// no call fails.
func TestFactoryBalance(t *testing.T) {
	stack := kitlayer.NewStack[sumRequest, sumResponse]()
	instances := sd.FixedInstancer{
		sums(t, stack).Listener.Addr().String(), unreachable(), sums(t, stack).Listener.Addr().String(),
	}
	ctx, cancel := context.WithCancel(t.Context())
	var open sync.WaitGroup
	counted := func(instance string) (endpoint.Endpoint, io.Closer, error) {
		open.Add(1)
		e, c, err := sumFactory(instance)
		return e, closer(func() {
			_ = c.Close()
			open.Done()
		}), err
	}
	service := kitlayer.Factory[sumRequest, sumResponse](counted)
	balancer := balance.Resolve(ctx,
		kit.New(func(string) (sd.Instancer, error) { return instances, nil }), balance.Config{Target: "sum"},
		func(ctx context.Context, target discover.Target) layer.Service[sumRequest, sumResponse] {
			return service(ctx, target.Endpoint.Addr.String())
		})
	require.NoError(t, balancer.Ready(t.Context()))
	svc := stack.Retry(layer.RetryPolicy[sumRequest, sumResponse]{}).Service(balancer)
	for i := range 100 {
		rsp, err := svc.Call(t.Context(), sumRequest{i, 1})
		require.NoError(t, err)
		require.Equal(t, i+1, rsp.Sum)
	}
	cancel()
	open.Wait() // every closer is closed
}

func TestFactoryClosesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, life := range map[string]func(context.Context) (context.Context, context.CancelFunc){
			"later": context.WithCancel,
			"before": func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, end := context.WithCancel(ctx)
				end()
				return ctx, end
			},
		} {
			var closed atomic.Int64
			made := kitlayer.Factory[int, int](func(string) (endpoint.Endpoint, io.Closer, error) {
				return double, closer(func() { closed.Add(1); panic("close") }), nil
			})
			ctx, end := life(t.Context())
			svc := made(ctx, "10.0.0.1:80")
			rsp, err := svc.Call(t.Context(), 21)
			require.NoError(t, err)
			require.Equal(t, 42, rsp)
			synctest.Wait()
			assert.Equal(t, name == "before", closed.Load() == 1)
			end()
			end()
			synctest.Wait()
			assert.EqualValues(t, 1, closed.Load(), name)
		}
	})
}

// Every rejection has the error of a failed factory.
func TestFactoryError(t *testing.T) {
	errNoSuch := errors.New("no such instance")
	for name, tt := range map[string]struct {
		err  error
		text string
	}{
		"an error":    {errNoSuch, "factory 10.0.0.1:80: closed: the factory made no endpoint: no such instance"},
		"no endpoint": {nil, "factory 10.0.0.1:80: closed: the factory made no endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			svc := kitlayer.Factory[int, int](func(string) (endpoint.Endpoint, io.Closer, error) {
				return nil, nil, tt.err
			})(t.Context(), "10.0.0.1:80")
			_, err := svc.Call(t.Context(), 1)
			require.ErrorIs(t, err, layer.ErrClosed)
			require.EqualError(t, err, tt.text)
			require.ErrorIs(t, layer.Poll(svc), layer.ErrClosed)
			assert.Equal(t, tt.err != nil, errors.Is(err, errNoSuch))
			assert.Contains(t, layer.Describe(svc).String(), "factory")
		})
	}
}

// unreachable returns the address of a closed server.
func unreachable() string {
	s := httptest.NewServer(nil)
	defer s.Close()
	return s.Listener.Addr().String()
}
