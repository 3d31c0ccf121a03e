package balance_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// lasting is a body with one byte that ends with an error from a channel.
type lasting struct {
	end    <-chan struct{}
	with   error
	before bool
}

func (l *lasting) Read(p []byte) (int, error) {
	if !l.before {
		l.before = true
		return copy(p, "x"), nil
	}
	<-l.end
	return 0, l.with
}

func (l *lasting) Close() error { return nil }

// A failing endpoint without streams gets few requests among others with many streams.
func TestFailingEndpointAmongStreams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const streams = 3000
		p, ss := newPool(t, balance.WithClassifier(layer.DefaultClassifier[*response])), servers(3)
		over, broken := make(chan struct{}), make(chan struct{})
		for i, s := range ss {
			end := over
			if i == 0 {
				end = broken
			}
			s.serve = func(context.Context, string) (*response, error) {
				time.Sleep(5 * time.Millisecond)
				return &response{&lasting{end: end, with: io.EOF}}, nil
			}
		}
		p.add(ss...)
		for range streams {
			go func() { _ = p.send(context.Background()) }()
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		require.Greater(t, ss[0].calls.Load(), int64(streams/4))
		for i, s := range ss {
			s.after(func() time.Duration { return 5 * time.Millisecond })
			if i == 0 {
				s.serve = func(context.Context, string) (*response, error) {
					time.Sleep(5 * time.Millisecond)
					return nil, errBroken
				}
			}
		}
		close(broken)
		synctest.Wait()
		require.Less(t, p.load(t, 3000, 10*time.Millisecond, ss, patient)[0], 0.01)
		close(over)
		synctest.Wait()
	})
}

// A stream that fails after an hour is a failure, but not a latency of an hour.
func TestStreamFailsLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithClassifier(layer.DefaultClassifier[*response])), servers(3)
		for _, s := range ss {
			s.after(around(5 * time.Millisecond))
		}
		p.add(ss...)
		p.load(t, 1000, 2*time.Millisecond, ss, patient)
		well, breaks := ss[0].serve, make(chan struct{})
		ss[0].serve = func(context.Context, string) (*response, error) {
			return &response{&lasting{end: breaks, with: io.ErrUnexpectedEOF}}, nil
		}
		for before := ss[0].calls.Load(); ss[0].calls.Load() == before; {
			go func() { _ = p.send(context.Background()) }()
			time.Sleep(20 * time.Millisecond)
		}
		synctest.Wait()
		ss[0].serve = well
		time.Sleep(time.Hour)
		p.load(t, 1000, 2*time.Millisecond, ss, patient)
		close(breaks)
		synctest.Wait()
		require.Less(t, p.ewma(ss[0]), time.Second)
		require.Greater(t, p.ewma(ss[0]), 50*time.Millisecond, "the penalty")
	})
}

var errCallers = errors.New("the caller's own body broke off")

func callersAreIgnored(o layer.Outcome[*response]) layer.Class {
	if errors.Is(o.Err, errCallers) {
		return layer.Ignorable
	}
	return layer.DefaultClassifier(o)
}

// An ignorable response is not a good one between failures.
func TestIgnorableResult(t *testing.T) {
	bubble(t, func(t *testing.T) {
		policy := balance.Policy{Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 5}}
		p, ss := newPool(t, balance.WithPolicy[*response](policy), balance.WithClassifier(callersAreIgnored)), servers(4)
		for _, s := range ss {
			s.after(func() time.Duration { return 10 * time.Millisecond })
		}
		n := 0
		ss[0].serve = func(context.Context, string) (*response, error) {
			if n++; n%4 == 0 {
				return nil, errCallers
			}
			return nil, errBroken
		}
		p.add(ss...)
		for range 400 {
			_ = p.send(context.Background())
			time.Sleep(time.Millisecond)
		}
		require.Less(t, ss[0].calls.Load(), int64(20))
		require.Equal(t, "ejected", p.of(ss[0]).Get("state"))
	})
}

// Its latency counts only if it is longer than expected.
func TestIgnorableLatency(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithClassifier(callersAreIgnored)), servers(1)
		p.add(ss...)
		took, err := 50*time.Millisecond, error(nil)
		ss[0].serve = func(context.Context, string) (*response, error) {
			time.Sleep(took)
			return body("x"), err
		}
		for range 20 {
			require.NoError(t, p.send(t.Context()))
		}
		took, err = time.Millisecond, errCallers
		for range 10_000 {
			require.ErrorIs(t, p.send(t.Context()), errCallers)
		}
		require.Greater(t, p.ewma(ss[0]), 40*time.Millisecond)
		took = time.Second
		require.ErrorIs(t, p.send(t.Context()), errCallers)
		require.Greater(t, p.ewma(ss[0]), 55*time.Millisecond)
	})
}

func TestCompletionPanics(t *testing.T) {
	for _, sample := range []balance.Sample{balance.SampleHeaders, balance.SampleFirstByte} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Sample: sample}),
				balance.WithCompletion(func(context.Context, *response, layer.Observer) *response { panic("unforeseen") })), servers(1)
			p.add(ss...)
			require.Panics(t, func() { _, _ = p.Call(t.Context(), "") })
			require.Zero(t, p.Snapshot()[0].InFlight)
		})
	}
}

// A slow start begins when an endpoint is ready for the first time, or after a long time.
func TestSlowStartBegins(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{SlowStart: time.Minute})), servers(2)
		for _, s := range ss {
			s.after(around(10 * time.Millisecond))
		}
		p.add(ss[0])
		p.load(t, 1000, 10*time.Millisecond, ss, patient)
		reopens := func(after time.Duration) (share float64) {
			time.Sleep(after)
			ss[1].open(true)
			synctest.Wait()
			return p.load(t, 500, 10*time.Millisecond, ss, patient)[1]
		}
		shuts := func() {
			ss[1].open(false)
			for before := ss[1].refused.Load(); ss[1].refused.Load() == before; {
				_ = p.send(t.Context())
			}
			synctest.Wait()
		}
		ss[1].open(false)
		p.add(ss[1])
		require.Less(t, reopens(2*time.Minute), 0.3, "ready for the first time")
		require.InDelta(t, 0.5, reopens(time.Minute), 0.1, "no more")
		shuts()
		require.InDelta(t, 0.5, reopens(10*time.Second), 0.1, "unchanged")
		shuts()
		require.Less(t, reopens(time.Minute), 0.3, "perhaps another process")
	})
}
