package tcplayer

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waits are the observations of a histogram in milliseconds.
type waits struct {
	metrics.Histogram
	seen []float64
}

func (w *waits) Observe(ms float64) { w.seen = append(w.seen, ms) }

func TestDetectMeasured(t *testing.T) {
	type client = func(conn net.Conn)
	says := func(s string) client { return func(conn net.Conn) { io.WriteString(conn, s) } }
	for result, tt := range map[string]struct {
		do   client
		wait float64
	}{
		"http/1":       {says("GET / HTTP/1.1\r\n\r\n"), 0},
		"http/2":       {says(preface + "\r\n\r\nSM\r\n\r\n"), 0},
		"not_http":     {func(conn net.Conn) { time.Sleep(2 * time.Second); io.WriteString(conn, "HELO"); conn.Close() }, 2000},
		"read_timeout": {says("HELO"), 10_000},
		"error":        {func(conn net.Conn) { conn.Close() }, 0},
	} {
		t.Run(result, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, w := newGauges(), new(waits)
				near, accepted := net.Pipe()
				go func() {
					tt.do(near)
					time.Sleep(time.Minute)
					near.Close()
				}()
				end := serverFunc(func(_ context.Context, conn net.Conn) (ByteCount, error) {
					_, _ = io.Copy(io.Discard, conn)
					return ByteCount{}, conn.Close()
				})
				measured := WithDetectMetrics(DetectInstruments{Latency: w, Results: instrument{g, "results"}})
				_, _ = Detect(Protocols{Opaque: end}, measured).Call(t.Context(), accepted)
				assert.Equal(t, map[string]int{"results[result " + result + "]": 1}, g.all())
				assert.Equal(t, 5, g.with, "bound once")
				assert.Equal(t, []float64{tt.wait}, w.seen)
				accepted.Close()
				time.Sleep(time.Hour) // until the client has ended
			})
		})
	}
}

// A skipped or canceled connection is not observed.
func TestDetectMeasuredSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGauges()
		measured := WithDetectMetrics(DetectInstruments{Results: instrument{g, "results"}})
		keep := serverFunc(func(context.Context, net.Conn) (ByteCount, error) { return ByteCount{}, nil })
		near, accepted := net.Pipe()
		defer near.Close()
		skip := WithSkipDetect(func(context.Context, net.Conn) bool { return true })
		_, err := Detect(Protocols{Opaque: keep}, measured, skip).Call(t.Context(), accepted)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = Detect(Protocols{Opaque: keep}, measured).Call(ctx, accepted)
		require.Error(t, err)
		assert.Empty(t, g.all())
		WithDetectMetrics(DetectInstruments{})(new(detectOptions))
	})
}
