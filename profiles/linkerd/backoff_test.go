package linkerd_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles/linkerd"
)

// refusing is a connection on which no stream can be opened; it notes when
// that was tried.
type refusing struct {
	grpc.ClientConnInterface
	began time.Time
	tried []time.Duration
}

func (c *refusing) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	c.tried = append(c.tried, time.Since(c.began))
	return nil, status.Error(codes.Unavailable, "refused")
}

// tries returns the waits between n tries.
func tries(t *testing.T, n int, opts ...linkerd.Option) []time.Duration {
	t.Helper()
	conn := &refusing{began: time.Now()}
	for _, err := range linkerd.New(conn, opts...).Watch(t.Context(), "web:80") {
		require.Equal(t, codes.Unavailable, status.Code(err))
		if len(conn.tried) == n {
			break
		}
	}
	require.Zero(t, conn.tried[0], "the first try is at once")
	waits := make([]time.Duration, n-1)
	for i := range waits {
		waits[i] = conn.tried[i+1] - conn.tried[i]
	}
	return waits
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		assert.Equal(t, []time.Duration{
			10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 50 * time.Millisecond, 50 * time.Millisecond,
		}, tries(t, 6, linkerd.WithBackoff(layer.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond})))
	})
}

func TestBackoffDefault(t *testing.T) {
	for what, opts := range map[string][]linkerd.Option{
		"not set":     nil,
		"zero":        {linkerd.WithBackoff(layer.Backoff{})},
		"linkerd's":   {linkerd.WithBackoff(layer.DefaultBackoff())},
		"jitter only": {linkerd.WithBackoff(layer.Backoff{Jitter: 0.1})},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				want := 100 * time.Millisecond
				for i, wait := range tries(t, 13, opts...) {
					assert.GreaterOrEqual(t, wait, want, "%d", i)
					assert.LessOrEqual(t, wait, min(want*11/10, time.Minute), "%d", i)
					want = min(2*want, time.Minute)
				}
			})
		})
	}
}

// A wait ends with the context.
func TestBackoffEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began, news := time.Now(), 0
		for range linkerd.New(&refusing{}, linkerd.WithBackoff(layer.Backoff{Min: time.Hour, Max: time.Hour})).Watch(ctx, "web:80") {
			news++
		}
		assert.Equal(t, 1, news)
		assert.Equal(t, time.Second, time.Since(began))
	})
}

// replaying opens streams that bring one message and end.
type replaying struct {
	refusing
}

func (c *replaying) NewStream(ctx context.Context, d *grpc.StreamDesc, m string, o ...grpc.CallOption) (grpc.ClientStream, error) {
	_, err := c.refusing.NewStream(ctx, d, m, o...)
	if len(c.tried)%3 != 0 {
		return nil, err
	}
	return &oneMessage{}, nil
}

type oneMessage struct {
	grpc.ClientStream
	sent bool
}

func (s *oneMessage) SendMsg(any) error { return nil }
func (s *oneMessage) CloseSend() error  { return nil }

func (s *oneMessage) RecvMsg(any) error {
	if s.sent {
		time.Sleep(10 * time.Second)
		return status.Error(codes.Unavailable, "over")
	}
	s.sent = true
	return nil
}

// The backoff starts from Min again after a stream that had a message and lasted
// ten seconds: here with every third.
func TestBackoffReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &replaying{refusing{began: time.Now()}}
		messages := 0
		for _, err := range linkerd.New(conn, linkerd.WithBackoff(layer.Backoff{Min: time.Second, Max: time.Hour})).Watch(t.Context(), "web:80") {
			if err == nil {
				messages++
			}
			if len(conn.tried) == 7 {
				break
			}
		}
		assert.Equal(t, 2, messages)
		// 1 s and 2 s after failures; the stream that worked starts over at 1 s.
		assert.Equal(t, []time.Duration{0, 1, 3, 14, 16, 20, 31}, inSeconds(conn.tried))
	})
}

func inSeconds(ds []time.Duration) []time.Duration {
	seconds := make([]time.Duration, len(ds))
	for i, d := range ds {
		seconds[i] = d / time.Second
	}
	return seconds
}
