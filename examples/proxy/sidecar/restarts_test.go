package sidecar_test

import (
	"testing"

	"github.com/gotower/gotower/internal/restarttest"
)

// A server that closes connections causes no failure of a POST or a gRPC call.
func TestRestarts(t *testing.T) {
	t.Parallel()
	t.Run("HTTP/1.1", func(t *testing.T) {
		t.Parallel()
		s := restarttest.NewHTTP(t)
		ctl, _ := serveController(t, "127.0.0.1:0", at("web.example:80", s.Addr))
		s.LoadBetweenRestarts(t, restarttest.Post(newTestProxy(t, ctl).client(t), "http://web.example/"))
	})
	t.Run("gRPC", func(t *testing.T) {
		t.Parallel()
		ctl, _ := serveController(t, "127.0.0.1:0", at("health.example:8080", restarttest.GRPC(t)))
		restarttest.LoadGRPC(t, newTestProxy(t, ctl).Addr, "health.example:8080")
	})
}
