package spans_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/internal/spans"
	"github.com/gotower/gotower/examples/internal/spans/spanstest"
)

// newSpan returns a span that uses every field. Its texts are longer than the limit or not UTF-8.
func newSpan() *spans.Span {
	parent, _ := spans.Parse(map[string][]string{"Traceparent": {"00-" + ids + "-01"}, "Tracestate": {"a=1"}})
	s := &spans.Span{
		Context: *parent.Child(), Kind: spans.Client, Name: "/a\xff", Failure: "no\xff",
		Start: time.Unix(1, 2), End: time.Unix(3, 4),
	}
	s.Set("empty", "")
	s.Set("long", strings.Repeat("a", 5000))
	s.SetInt("negative", -7)
	s.SetInt("zero", 0)
	return s
}

// A receiver of OTLP over HTTP, and one over gRPC, decode every field of a span.
func TestExport(t *testing.T) {
	for name, start := range map[string]func(*testing.T, *spanstest.Receiver) spans.Sender{
		"http": func(t *testing.T, r *spanstest.Receiver) spans.Sender {
			t.Helper()
			srv := httptest.NewServer(r)
			t.Cleanup(srv.Close)
			return spans.HTTP(srv.URL + "/v1/traces")
		},
		"grpc": func(t *testing.T, r *spanstest.Receiver) spans.Sender {
			t.Helper()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			srv := grpc.NewServer()
			r.Register(srv)
			go func() { _ = srv.Serve(l) }()
			t.Cleanup(srv.Stop)
			conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			t.Cleanup(func() { conn.Close() })
			return spans.GRPC(conn)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := spanstest.NewReceiver()
			require.NoError(t, err)
			e := spans.New(spans.Config{
				Send: start(t, r), Scope: "scope", Log: slog.New(slog.DiscardHandler),
				Resource: []spans.Attribute{spans.String("service.name", "s"), spans.Int("process.pid", 1)},
			})
			e.Add(newSpan())
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			e.Run(ended)
			require.Equal(t, spans.Counts{Sent: 1, Requests: 1}, e.Counts())
			received := r.Spans(trace)
			require.Len(t, received, 1)
			assert.Len(t, received[0].ID, 16)
			received[0].ID = ""
			assert.Equal(t, spanstest.Span{
				Trace: trace, Parent: span, State: "a=1", Name: "/a\uFFFD", Kind: "SPAN_KIND_CLIENT", Failure: "no\uFFFD",
				Start: time.Unix(1, 2).UnixNano(), End: time.Unix(3, 4).UnixNano(), Scope: "scope",
				Attributes: map[string]any{"empty": "", "long": strings.Repeat("a", 1024), "negative": int64(-7), "zero": int64(0)},
				Resource:   map[string]any{"service.name": "s", "process.pid": int64(1)},
			}, received[0])
		})
	}
}

// Spans are sent after a second, or when a batch is full. While the receiver hangs, a limited number
// of spans wait and the others are dropped. At the end, the spans that wait are sent, but not for
// longer than the timeouts of two requests.
func TestExporterLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := false
		e := spans.New(spans.Config{Log: slog.New(slog.DiscardHandler), Send: func(ctx context.Context, _ []byte) error {
			if hang {
				<-ctx.Done()
			}
			return ctx.Err()
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			e.Run(ctx)
		}()
		e.Add(newSpan())
		time.Sleep(900 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, spans.Counts{}, e.Counts())
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, spans.Counts{Sent: 1, Requests: 1}, e.Counts())
		for range 512 {
			e.Add(newSpan())
		}
		synctest.Wait()
		require.Equal(t, spans.Counts{Sent: 513, Requests: 2}, e.Counts())

		hang = true
		for range 512 { // the batch that hangs
			e.Add(newSpan())
		}
		synctest.Wait()
		for range 5000 {
			e.Add(newSpan())
		}
		assert.Equal(t, spans.Counts{Sent: 513, Dropped: 5000 - 4096, Requests: 2}, e.Counts())
		start := time.Now()
		cancel()
		<-done
		assert.Equal(t, 10*time.Second, time.Since(start))
		assert.Equal(t, spans.Counts{Sent: 513, Failed: 512 + 4096, Dropped: 5000 - 4096, Requests: 2 + 1 + 8}, e.Counts())
	})
}

// A receiver that returns an error is logged, and its spans count as failed.
func TestExportError(t *testing.T) {
	r, err := spanstest.NewReceiver()
	require.NoError(t, err)
	srv := httptest.NewServer(r)
	defer srv.Close()
	require.ErrorContains(t, spans.HTTP(srv.URL+"/other")(t.Context(), nil), "the receiver returned 400")
	require.ErrorContains(t, spans.HTTP(srv.URL+"/v1/traces")(t.Context(), []byte{0xa2, 0x06, 0}), "unknown fields")

	log := new(strings.Builder)
	e := spans.New(spans.Config{
		Log: slog.New(slog.NewTextHandler(log, nil)), Send: func(context.Context, []byte) error { return errors.New("refused") },
	})
	e.Add(newSpan())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	e.Run(ended)
	assert.Equal(t, spans.Counts{Failed: 1, Requests: 1}, e.Counts())
	assert.Contains(t, log.String(), "spans=1 err=refused")
}
