package tap

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/status"
)

// WithEventRate bounds how many events a second a Server sends, to all its watchers
// together: a busy process then spends no more than that on being watched,
// however many want each of its requests. Watchers take turns of up to sixteen
// events. An event takes about ten microseconds of a processor; the news of drops
// are events, too. What cannot be sent fills the buffers of the watchers, is
// dropped there, and told. The default, and the meaning of n <= 0, is no bound.
func WithEventRate(n int) ServerOption {
	return serverOption(func(s *Server) {
		s.rate = nil
		if n > 0 {
			s.rate = rate.NewLimiter(rate.Limit(n), max(n/eventBurst, 1))
		}
	})
}

// eventBurst is which part of a second's events may be sent at once.
const eventBurst = 100

// turns are those of a reader over a stream, within the rate of the server.
func (s *Server) turns(ctx context.Context) turns {
	if s.rate == nil {
		return turns{more: mostMore, gather: gatherFor}
	}
	return turns{more: min(mostMore, s.rate.Burst()-1), gather: gatherFor, ask: func(n int) error {
		if err := ctx.Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		turn := s.rate.ReserveN(time.Now(), n)
		wait := turn.Delay()
		if wait <= 0 {
			return nil
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			turn.Cancel()
			return status.FromContextError(ctx.Err()).Err()
		case <-s.down:
			return errDown
		}
	}}
}
