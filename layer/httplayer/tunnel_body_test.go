package httplayer

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
)

// CONNECT has no body. If it has one, the service that admits the request closes it.
func TestConnectClosesRequestBody(t *testing.T) {
	yes, _ := tunnelled(t, established)
	hangsUp := conntest.Serve(t, func(int, net.Conn) {})
	for name, addr := range map[string]string{"tunnel": yes, "failure": hangsUp} {
		t.Run(name, func(t *testing.T) {
			body := &asked{Reader: strings.NewReader("hello")}
			req := request(t, http.MethodConnect, "http://web:443", "")
			req.Body, req.ContentLength = body, 5
			e := endpoint(t, addr, WithConnectTimeout(patience))
			rsp, err := e.Call(t.Context(), req)
			if name == "tunnel" {
				require.NoError(t, err)
				rsp.Body.Close()
			} else {
				require.Error(t, err)
			}
			assert.EqualValues(t, 1, body.closes.Load())
			assert.Zero(t, body.reads.Load())
		})
	}
	t.Run("refusal", func(t *testing.T) {
		body := &asked{Reader: strings.NewReader("hello")}
		req := request(t, http.MethodConnect, "http://web:443", "")
		req.Body = body
		e := endpoint(t, "10.0.0.1:80", WithDialContext(func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF }))
		_, err := e.Call(t.Context(), req)
		require.ErrorIs(t, err, layer.ErrNotReady)
		assert.Zero(t, body.closes.Load())
	})
}
