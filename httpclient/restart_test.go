package httpclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/internal/restarttest"
	"github.com/gotower/gotower/layer/httplayer"
)

// A server that ends connections costs no POST.
func TestClientSurvivesRestarts(t *testing.T) {
	t.Run("HTTP/1.1", func(t *testing.T) {
		s := restarttest.NewHTTP(t)
		web := httpclient.New(t.Context(), "web.default", httpclient.WithAddrs(s.Addr))
		s.LoadBetweenRestarts(t, restarttest.Post(client(t, web), "http://web.default/"))
	})
	t.Run("HTTP/2", func(t *testing.T) {
		s := restarttest.NewHTTP(t)
		web := httpclient.New(t.Context(), "web.default", httpclient.WithAddrs(s.Addr), httpclient.WithEndpointOptions(httplayer.WithHTTP2()))
		s.LoadDuringRestarts(t, restarttest.Post(client(t, web), "http://web.default/"))
	})
	t.Run("gRPC", func(t *testing.T) {
		web := httpclient.New(t.Context(), "web.default", httpclient.WithAddrs(restarttest.GRPC(t)))
		c := client(t, web)
		restarttest.Load(t, 400, func(ctx context.Context) error { return check(ctx, c) })
	})
}

// check sends a unary call with an empty message.
func check(ctx context.Context, c *http.Client) error {
	const url = "http://web.default/grpc.health.v1.Health/Check"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(make([]byte, 5)))
	if err != nil {
		return err
	}
	req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	rsp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
	_, err = io.Copy(io.Discard, rsp.Body)
	if status := rsp.Trailer.Get("Grpc-Status"); status != "0" {
		err = errors.Join(err, fmt.Errorf("%s, status %q", rsp.Status, status))
	}
	return err
}
