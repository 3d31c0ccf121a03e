package linkerd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/resolve"
)

// ends has the errors that a consumer receives at the ends of streams, and their times.
type ends struct {
	at   []time.Duration
	errs []error
	sets int // that came whole
}

// follow resolves for d, and waits for think after each item.
func follow(t *testing.T, r resolve.Resolver, d, think time.Duration) (e ends) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for u, err := range r.Resolve(ctx, "web") {
		switch {
		case err != nil && time.Since(start) >= d: // the server may know of our deadline first
		case err != nil:
			e.at, e.errs = append(e.at, time.Since(start)), append(e.errs, err)
		case u.Kind == resolve.Replace:
			e.sets++
		}
		time.Sleep(think)
	}
	return e
}

// repeats is a controller that sends m at once and then every so often; 0 is
// never.
func repeats(m *destination.Update, every time.Duration) func(*destination.GetDestination, getStream) error {
	return func(_ *destination.GetDestination, to getStream) error {
		for {
			if m != nil {
				if err := to.Send(m); err != nil {
					return err
				}
			}
			var again <-chan time.Time
			if every > 0 {
				again = time.After(every)
			}
			select {
			case <-again:
			case <-to.Context().Done():
				return to.Context().Err()
			}
		}
	}
}

func TestStreamLimits(t *testing.T) {
	web := addMessage(tcp(addr1))
	none := Limits{Initial: -1, Idle: -1, Lifetime: -1}
	for name, tt := range map[string]struct {
		limits      Limits
		get         func(*destination.GetDestination, getStream) error
		frozen      bool // health checks are not answered
		think       time.Duration
		least, most time.Duration // when the first stream ends; 0 is never
		code        codes.Code    // of its end, or else it is routine
	}{
		"no answer":           {get: repeats(nil, 0), frozen: true, least: 3 * time.Second, most: 3 * time.Second, code: codes.DeadlineExceeded},
		"silence":             {get: repeats(nil, 0), least: 5 * time.Minute, most: 340 * time.Second}, // from the Empty at 10 s on
		"nothing to be read":  {get: repeats(addMessage(nowhere), time.Second), least: 3 * time.Second, most: 3 * time.Second, code: codes.DeadlineExceeded},
		"a remove first":      {get: repeats(removeMessage(tcp(addr1)), 0), least: 3 * time.Second, most: 3 * time.Second, code: codes.DeadlineExceeded},
		"only removes":        {get: repeats(removeMessage(tcp(addr1)), time.Second), least: 3 * time.Second, most: 3 * time.Second, code: codes.DeadlineExceeded},
		"no news":             {get: repeats(web, 0), least: 5 * time.Minute, most: 330 * time.Second},
		"news all the time":   {get: repeats(web, time.Minute), least: time.Hour, most: 66 * time.Minute},
		"a slow consumer":     {get: repeats(web, time.Minute), think: 10 * time.Minute, least: time.Hour, most: 76 * time.Minute},
		"silence is allowed":  {limits: none, get: repeats(nil, 0)},
		"freezing is allowed": {limits: none, get: repeats(nil, 0), frozen: true},
		"idleness is allowed": {limits: none, get: repeats(web, 0)},
		"old age is allowed":  {limits: none, get: repeats(web, time.Minute)},
		"only old age is not": {limits: Limits{Initial: -1, Idle: -1}, get: repeats(nil, 0), least: time.Hour, most: 66 * time.Minute},
		"too short": {
			limits: Limits{Idle: 1, Lifetime: 1}, get: repeats(web, time.Second), least: 10 * time.Second, most: 11 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m inMemory
				m.frozen = tt.frozen
				m.start(t, tt.get)
				got := follow(t, New(m.connect(t), WithStreamLimits(tt.limits)), 3*time.Hour, tt.think)
				if tt.least == 0 {
					assert.Empty(t, got.errs)
					return
				}
				require.NotEmpty(t, got.errs)
				assert.GreaterOrEqual(t, got.at[0], tt.least)
				assert.LessOrEqual(t, got.at[0], tt.most)
				for _, err := range got.errs {
					if tt.code != codes.OK {
						require.Equal(t, tt.code, status.Code(err), err)
						continue
					}
					require.ErrorIs(t, err, stream.ErrEnded)
				}
				if tt.code == codes.OK && tt.think == 0 && tt.limits.Initial == 0 && name != "silence" {
					// The time may be over in a back-off.
					assert.Contains(t, []int{len(got.errs), len(got.errs) + 1}, got.sets, "each stream brings all there is")
				}
			})
		})
	}
}

// The default is the zero Limits.
func TestDefaultStreamLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m inMemory
		m.frozen = true
		m.start(t, repeats(nil, 0))
		got := follow(t, New(m.connect(t)), time.Minute, 0)
		require.NotEmpty(t, got.errs)
		assert.Equal(t, 3*time.Second, got.at[0])
		require.Equal(t, codes.DeadlineExceeded, status.Code(got.errs[0]), got.errs[0])
	})
}

// Streams that began together do not end together.
func TestStreamLimitsJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m inMemory
		m.start(t, repeats(addMessage(tcp(addr1)), 0))
		r := New(m.connect(t), WithStreamLimits(Limits{Idle: -1}))
		at := make(chan time.Duration)
		for range 100 {
			go func() { at <- follow(t, r, 2*time.Hour, 0).at[0] }()
		}
		seconds := map[time.Duration]bool{}
		for range 100 {
			seconds[(<-at).Truncate(10*time.Second)] = true
		}
		assert.Greater(t, len(seconds), 20, "of 36 spans of ten seconds")
	})
}

// A controller that ends streams at once, or never answers, gets few requests.
func TestStreamBackoff(t *testing.T) {
	web := addMessage(tcp(addr1))
	for name, get := range map[string]func(*destination.GetDestination, getStream) error{
		"answers and ends": func(_ *destination.GetDestination, to getStream) error { return to.Send(web) },
		"answers and fails": func(_ *destination.GetDestination, to getStream) error {
			_ = to.Send(web)
			return status.Error(codes.Unavailable, "overloaded")
		},
		"ends":             func(*destination.GetDestination, getStream) error { return nil },
		"fails":            func(*destination.GetDestination, getStream) error { return status.Error(codes.NotFound, "who?") },
		"is frozen":        repeats(nil, 0),
		"invalid messages": repeats(addMessage(nowhere), time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m inMemory
				m.frozen = name == "is frozen"
				m.start(t, get)
				conn := &counted{ClientConnInterface: m.connect(t)}
				most := resolve.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second, Jitter: 0.1}
				start := time.Now()
				follow(t, New(conn, WithBackoff(most), WithStreamLimits(Limits{})), time.Hour, 0)
				assert.LessOrEqual(t, float64(len(conn.since(start)))/time.Hour.Seconds(), 0.2)
				assert.Greater(t, len(conn.since(start)), 240, "it continues to try")
			})
		})
	}
}
