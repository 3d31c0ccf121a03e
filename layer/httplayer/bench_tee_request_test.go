package httplayer

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"testing"
)

// BenchmarkTeeRequest measures the copy of a request without its transport.
func BenchmarkTeeRequest(b *testing.B) {
	head := http.Header{"Accept": {"*/*"}, "User-Agent": {"bench"}, "Cookie": {"a=b"}, "Content-Type": {"text/plain"}}
	url := &url.URL{Scheme: "http", Host: "web", Path: "/"}
	for name, size := range map[string]int{"no body": 0, "1 KiB": 1 << 10, "64 KiB": 64 << 10} {
		b.Run(name, func(b *testing.B) {
			text, buf := make([]byte, size), make([]byte, 32<<10)
			b.ReportAllocs()
			for b.Loop() {
				req := &http.Request{Method: http.MethodPost, URL: url, Header: head, ContentLength: int64(size)}
				if size > 0 {
					req.Body = io.NopCloser(bytes.NewReader(text))
				}
				req = Editor{}.TeeRequest(req, 64<<10, func(*http.Request, bool) {})
				for err := error(nil); err == nil && size > 0; {
					_, err = req.Body.Read(buf)
				}
			}
		})
	}
}
