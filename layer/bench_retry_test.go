package layer_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

type retryRequest struct {
	Method string
	Body   io.ReadCloser
}

func BenchmarkRetry(b *testing.B) {
	inner := layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	svc := layer.Retry(layer.RetryPolicy[int, int]{})(inner)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := svc.Call(ctx, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRetryMethod(b *testing.B) {
	rsp := &response{}
	inner := layer.Func[*retryRequest, *response](func(context.Context, *retryRequest) (*response, error) { return rsp, nil })
	svc := layer.Retry(layer.RetryPolicy[*retryRequest, *response]{})(inner)
	req := &retryRequest{Method: "GET"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := svc.Call(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRetryAttemptTimeout(b *testing.B) {
	inner := layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	svc := layer.Retry(layer.RetryPolicy[int, int]{AttemptTimeout: time.Second})(inner)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := svc.Call(b.Context(), 1); err != nil {
			b.Fatal(err)
		}
	}
}

// The request body has 1 KiB, which is read and stored.
func BenchmarkRetryBody(b *testing.B) {
	text := strings.Repeat("x", 1<<10)
	buf := make([]byte, 2<<10)
	rsp := &response{}
	inner := layer.Func[*retryRequest, *response](func(_ context.Context, req *retryRequest) (*response, error) {
		defer req.Body.Close()
		_, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{req.Body}, buf)
		return rsp, err
	})
	svc := layer.Retry(layer.RetryPolicy[*retryRequest, *response]{})(inner)
	source := strings.NewReader(text)
	req := &retryRequest{Method: "PUT", Body: io.NopCloser(source)}
	b.ReportAllocs()
	for b.Loop() {
		source.Reset(text)
		if _, err := svc.Call(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}
