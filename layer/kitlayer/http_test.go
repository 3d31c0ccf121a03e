package kitlayer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	kithttp "github.com/go-kit/kit/transport/http"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
)

type sumRequest struct{ A, B int }

type sumResponse struct {
	Sum int
	Err string
}

func (r sumResponse) Failed() error {
	if r.Err == "" {
		return nil
	}
	return fmt.Errorf("sum: %s", r.Err)
}

// sums serves additions by go-kit's HTTP transport through a stack.
func sums(t *testing.T, stack layer.Stack[sumRequest, sumResponse]) *httptest.Server {
	svc := stack.Service(layer.Func[sumRequest, sumResponse](func(_ context.Context, r sumRequest) (sumResponse, error) {
		if r.A < 0 {
			return sumResponse{Err: "negative"}, nil
		}
		return sumResponse{Sum: r.A + r.B}, nil
	}))
	server := httptest.NewServer(kithttp.NewServer(
		kitlayer.Endpoint(svc),
		func(_ context.Context, r *http.Request) (any, error) {
			var req sumRequest
			err := json.NewDecoder(r.Body).Decode(&req)
			return req, err
		},
		kithttp.EncodeJSONResponse,
	))
	t.Cleanup(server.Close)
	return server
}

// client calls a server of sums by go-kit's HTTP transport.
func client(t *testing.T, server *httptest.Server, stack layer.Stack[sumRequest, sumResponse]) layer.Service[sumRequest, sumResponse] {
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	return stack.Service(kitlayer.Service[sumRequest, sumResponse](kithttp.NewClient(
		http.MethodPost, u, kithttp.EncodeJSONRequest,
		func(_ context.Context, r *http.Response) (any, error) {
			if r.StatusCode != http.StatusOK {
				return nil, fmt.Errorf("status %d", r.StatusCode)
			}
			var rsp sumResponse
			err := json.NewDecoder(r.Body).Decode(&rsp)
			return rsp, err
		},
		kithttp.SetClient(server.Client()),
	).Endpoint()))
}

func TestHTTPTransport(t *testing.T) {
	server := sums(t, layer.NewStack[sumRequest, sumResponse]().Limit(8))
	svc := client(t, server, kitlayer.NewStack[sumRequest, sumResponse]().
		Timeout(time.Minute))

	rsp, err := svc.Call(t.Context(), sumRequest{19, 23})
	require.NoError(t, err)
	assert.Equal(t, 42, rsp.Sum)

	rsp, err = svc.Call(t.Context(), sumRequest{-1, 1})
	require.NoError(t, err)
	require.EqualError(t, rsp.Failed(), "sum: negative")
}

// The stack of a server rejects, and go-kit's transport returns an error.
func TestHTTPServerRejects(t *testing.T) {
	server := sums(t, layer.NewStack[sumRequest, sumResponse]().Limit(0))
	svc := client(t, server, layer.NewStack[sumRequest, sumResponse]())
	_, err := svc.Call(t.Context(), sumRequest{1, 2})
	require.EqualError(t, err, "status 500")
}
