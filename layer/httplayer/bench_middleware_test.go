package httplayer

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// BenchmarkMiddleware measures a request to a handler that does nothing: without a middleware,
// without layers, with a limit, and with a limit and a timeout.
func BenchmarkMiddleware(b *testing.B) {
	bare := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for name, h := range map[string]http.Handler{
		"bare":          bare,
		"empty":         Middleware(nil)(bare),
		"limit":         Middleware(NewStack().Limit(10).Layer())(bare),
		"limit+timeout": Middleware(NewStack().Limit(10).Timeout(time.Minute).Layer())(bare),
	} {
		b.Run(name, func(b *testing.B) {
			w, r := silent{}, httptest.NewRequest(http.MethodGet, "/", nil)
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
}

// silent is a writer of no cost.
type silent struct{}

func (silent) Header() http.Header         { return nil }
func (silent) Write(p []byte) (int, error) { return len(p), nil }
func (silent) WriteHeader(int)             {}
func (silent) Flush()                      {}

// BenchmarkReplay measures the preparation of a request body for further attempts, and one attempt.
func BenchmarkReplay(b *testing.B) {
	r := httptest.NewRequest(http.MethodPut, "/", http.NoBody)
	for name, body := range map[string]func(){
		"none": func() { r.Body, r.GetBody = http.NoBody, nil },
		"kept": func() { r.Body = struct{ silentBody }{} },
	} {
		b.Run(name, func(b *testing.B) {
			body()
			b.ReportAllocs()
			for b.Loop() {
				if replay := (Replayer{}).Replay(r, 1<<16); replay != nil {
					again, _ := replay.Next()
					_ = again.Body.Close()
					replay.End()
				}
			}
		})
	}
}

type silentBody struct{}

func (silentBody) Read([]byte) (int, error) { return 0, nil }
func (silentBody) Close() error             { return nil }
