package httplayer

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// endless is a body that is always there.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A time limit that ends a request while its body is awaited does not count as a failure of
// the endpoint. Otherwise clients with slow uploads would eject healthy endpoints.
func TestEndpointDeadlineDuringBodyWait(t *testing.T) {
	limited := map[string]layer.Stack[*http.Request, *http.Response]{
		"timeout":                 NewStack().Timeout(time.Second),
		"response header timeout": NewStack().ResponseHeaderTimeout(time.Second),
		"per try":                 NewStack().Retry(RetryPolicy{MaxAttempts: 1, AttemptTimeout: time.Second}),
	}
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		for name, stack := range limited {
			for path, failed := range map[string]bool{
				"/reads": false, "/reads/all": true, "/ignores": true, "/talks": true, "/talks/grpc": true,
			} {
				t.Run(name+path, func(t *testing.T) {
					bubble(t, func(t *testing.T, ctx context.Context) {
						h := newHost(ctx, 0)
						h.srv.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
							if path != "/ignores" {
								_, _ = io.Copy(io.Discard, r.Body)
							}
							select { // over HTTP/1.1 the server detects the disconnect only in a read
							case <-r.Context().Done():
							case <-ctx.Done():
							}
						})
						body, client := io.Pipe()
						switch path {
						case "/reads", "/talks", "/talks/grpc":
							go client.Write([]byte("a piece"))
						case "/reads/all":
							go func() {
								_, _ = client.Write([]byte("all"))
								_ = client.Close()
							}()
						case "/ignores":
							go io.Copy(client, endless{})
						}
						req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://web"+path, body)
						require.NoError(t, err)
						switch path {
						case "/talks":
							req.ProtoMajor, req.ContentLength = 2, -1
						case "/talks/grpc":
							req.ProtoMajor, req.ContentLength = 2, 100
							req.Header.Set("Content-Type", "application/grpc")
						}
						var below error
						e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(h.network.DialContext))
						_, err = stack.Service(serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
							rsp, err := e.Call(ctx, r)
							below = err
							return rsp, err
						})).Call(ctx, req)
						require.Error(t, err)
						class := Classify(layer.Outcome[*http.Response]{Err: below})
						assert.Equal(t, failed, class.IsFailure(), "%v: %v", class, below)
						status, _ := StatusFromError(err)
						assert.Equal(t, http.StatusGatewayTimeout, status, err)
					})
				})
			}
		}
	})
}
