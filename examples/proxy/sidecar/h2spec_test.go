package sidecar_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/internal/h2spectest"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// TestH2Spec requires GOTOWER_TESTS=full and the program that .ci/h2spec.sh builds. The application
// receives the bytes of an invalid preface unchanged, and closes the connection.
func TestH2Spec(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	app := httplayer.NewServer(httplayer.FromHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
	})))
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- tcplayer.Serve(ctx, l, tcplayer.Detect(tcplayer.Protocols{HTTP1: app, HTTP2: app, Opaque: h2spectest.Opaque{}}), tcplayer.WithShutdownTimeout(0))
	}()
	t.Cleanup(func() { cancel(); <-served }) // h2spec leaves connections open, which is an error
	servers := make(map[string]h2spectest.Server)
	for way, addr := range ways(t, l.Addr().String()) {
		servers[way] = h2spectest.Server{Addr: addr}
	}
	h2spectest.Run(t, servers)
}
