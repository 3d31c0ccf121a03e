package httplayer

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A request body that fails is not a failure of the endpoint. The request is not sent
// elsewhere, and no circuit breaker counts it.
func TestEndpointBrokenRequestBody(t *testing.T) {
	addr := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	for name, opts := range map[string][]EndpointOption{"HTTP/1.1": nil, "HTTP/2": {WithHTTP2()}} {
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, addr, opts...)
			broken := errors.New("the upload broke off")
			body := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))
			req, err := http.NewRequest(http.MethodPost, "http://"+addr+"/", io.NopCloser(body))
			require.NoError(t, err)
			_, err = e.Call(t.Context(), req)
			require.ErrorIs(t, err, broken)
			require.Equal(t, layer.Ignorable, Classify(layer.Outcome[*http.Response]{Err: err}))
		})
	}
}

// A server that closes the connection during the request body is a failure of the endpoint.
func TestEndpointServerClosesInRequestBody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveRaw(t, l, func(_ int, conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1024))
		conn.Close()
	})
	e := endpoint(t, l.Addr().String())
	reader, writer := io.Pipe()
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		for {
			if _, err := writer.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	}()
	req, err := http.NewRequest(http.MethodPost, "http://"+l.Addr().String()+"/", reader)
	require.NoError(t, err)
	_, err = e.Call(t.Context(), req)
	require.Error(t, err)
	require.Equal(t, layer.Retryable, Classify(layer.Outcome[*http.Response]{Err: err}))
	<-wrote
}

// A connection that has rejected a request does not touch its body any more, because another
// endpoint sends it.
func TestRequestBodyWithdrawn(t *testing.T) {
	for _, closed := range []bool{false, true} {
		inner := &asked{Reader: strings.NewReader("hello")}
		body := &requestBody{wrappedBody: wrappedBody{inner}}
		if closed {
			require.NoError(t, body.Close())
		}
		require.True(t, body.withdraw())
		_, err := body.Read(make([]byte, 1)) // of a goroutine that began before
		require.Equal(t, http.ErrBodyReadAfterClose, err)
		require.NoError(t, body.Close())
		require.Zero(t, inner.reads.Load())
		require.Zero(t, inner.closes.Load())
	}
}
