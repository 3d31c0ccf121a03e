package linkerd

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

	"github.com/gotower/gotower/internal/stream"
)

// holding is a connection with streams that receive a message at each interval. A stream ends when
// its context ends.
type holding struct {
	grpc.ClientConnInterface
	every time.Duration // 0: never
	open  int
}

func (c *holding) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	c.open++
	return &held{ctx: ctx, every: c.every}, nil
}

type held struct {
	grpc.ClientStream
	ctx   context.Context
	every time.Duration
	begun bool
}

func (s *held) SendMsg(any) error { return nil }
func (s *held) CloseSend() error  { return nil }

func (s *held) RecvMsg(any) error {
	var news <-chan time.Time
	if s.every > 0 {
		if !s.begun {
			s.begun = true
			return nil
		}
		news = time.After(s.every)
	}
	select {
	case <-news:
		return nil
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

// How the first stream ends, and that there is another.
func TestStreamLimits(t *testing.T) {
	const never = 1000 * time.Hour
	none := Limits{Initial: -1, Idle: -1, Lifetime: -1}
	for name, tt := range map[string]struct {
		opts        []Option
		every       time.Duration
		least, most time.Duration // 0: it does not end
		code        codes.Code    // or else it is routine
	}{
		"silence":             {opts: []Option{WithStreamLimits(Limits{})}, least: 3 * time.Second, most: 3 * time.Second, code: codes.DeadlineExceeded},
		"idle":                {opts: []Option{WithStreamLimits(Limits{})}, every: never, least: 5 * time.Minute, most: 330 * time.Second},
		"old":                 {opts: []Option{WithStreamLimits(Limits{})}, every: time.Minute, least: time.Hour, most: 66 * time.Minute},
		"too short":           {opts: []Option{WithStreamLimits(Limits{Idle: 1, Lifetime: 1})}, every: time.Second, least: 10 * time.Second, most: 11 * time.Second},
		"silence is allowed":  {opts: []Option{WithStreamLimits(none)}},
		"idleness is allowed": {opts: []Option{WithStreamLimits(none)}, every: never},
		"by default":          {least: 3 * time.Second, most: 3 * time.Second, code: codes.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
				defer cancel()
				conn, start := &holding{every: tt.every}, time.Now()
				var ended error
				for _, err := range New(conn, tt.opts...).Watch(ctx, "web:80") {
					if conn.open > 1 {
						break
					}
					if err != nil {
						ended = err
						assert.GreaterOrEqual(t, time.Since(start), tt.least)
						assert.LessOrEqual(t, time.Since(start), tt.most)
					}
				}
				switch {
				case tt.least == 0:
					require.NoError(t, ended)
					return
				case tt.code != codes.OK:
					require.Equal(t, tt.code, status.Code(ended), ended)
				default:
					require.ErrorIs(t, ended, stream.ErrEnded)
				}
				require.Equal(t, 2, conn.open)
			})
		})
	}
}
