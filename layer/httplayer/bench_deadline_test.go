package httplayer

import (
	"net/http"
	"testing"
	"time"
)

func BenchmarkDeadline(b *testing.B) {
	req := &http.Request{Header: http.Header{"Grpc-Timeout": {"4999m"}, "Te": {"trailers"}, "User-Agent": {"x"}}}
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			GRPCTimeout(req)
		}
	})
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			SetGRPCTimeout(req, time.Second)
		}
	})
}
