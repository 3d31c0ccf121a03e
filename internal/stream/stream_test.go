package stream_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/stream"
)

var (
	errLost  = errors.New("lost")
	errFinal = errors.New("final")

	steady = backoff.Backoff{Min: time.Second, Max: 8 * time.Second}
)

func isFinal(err error) bool { return errors.Is(err, errFinal) }

// script is one stream: its messages, and how it ends (nil: cleanly).
type script struct {
	messages []int
	end      error
	lasts    time.Duration
}

// scripted plays one script for each open, and then ends permanently.
type scripted struct {
	scripts []script
	opened  []time.Duration // since start
	start   time.Time
	ctxs    []context.Context
}

func (s *scripted) open(ctx context.Context) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		n := len(s.opened)
		s.opened = append(s.opened, time.Since(s.start))
		s.ctxs = append(s.ctxs, ctx)
		if n == len(s.scripts) {
			yield(0, errFinal)
			return
		}
		for _, m := range s.scripts[n].messages {
			if !yield(m, nil) {
				return
			}
		}
		time.Sleep(s.scripts[n].lasts)
		if s.scripts[n].end != nil && !yield(0, s.scripts[n].end) {
			return
		}
		if s.scripts[n].end != nil {
			yield(-1, nil) // must never be seen: the error was the end
		}
	}
}

type item struct {
	n   int
	err error
}

func collect(seq iter.Seq2[int, error]) []item {
	var got []item
	for n, err := range seq {
		got = append(got, item{n, err})
	}
	return got
}

func TestReconnectItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{start: time.Now(), scripts: []script{
			{messages: []int{1, 2}},
			{messages: []int{3}, end: errLost},
			{end: errLost},
		}}
		got := collect(stream.Reconnect(t.Context(), steady, s.open, isFinal))
		assert.Equal(t, []item{
			{1, nil}, {2, nil}, {0, stream.ErrEnded},
			{3, nil}, {0, errLost},
			{0, errLost},
			{0, errFinal},
		}, got, "the final error is the last item")
	})
}

func TestReconnectBackoffReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{start: time.Now(), scripts: []script{
			{end: errLost}, {end: errLost}, {}, {end: errLost}, {messages: []int{1}, lasts: 7 * time.Second},
			{messages: []int{1}, lasts: 8 * time.Second}, {end: errLost},
		}}
		collect(stream.Reconnect(t.Context(), steady, s.open, isFinal))
		sec := time.Second
		assert.Equal(t, []time.Duration{
			0, 1 * sec, 3 * sec, 7 * sec, 15 * sec, 30 * sec, // 1, 2, 4, 8, 7 and 8: it was too short
			39 * sec, // 8, and it is 1 again
			41 * sec,
		}, s.opened)
	})
}

func TestReconnectContextEnds(t *testing.T) {
	for name, when := range map[string]time.Duration{
		"in a stream": 30 * time.Minute, "in a pause": time.Hour + time.Second/2,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), when)
				defer cancel()
				waiting := func(ctx context.Context) iter.Seq2[int, error] {
					return func(yield func(int, error) bool) {
						if err := backoff.Sleep(ctx, time.Hour); err != nil {
							yield(0, err) // an item at the end of the context is not yielded
						}
					}
				}
				for _, item := range collect(stream.Reconnect(ctx, steady, waiting, isFinal)) {
					assert.Equal(t, stream.ErrEnded, item.err)
				}
				assert.Equal(t, when, time.Since(start))
			})
		})
	}
}

func TestReconnectDoneContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &scripted{}
	assert.Empty(t, collect(stream.Reconnect(ctx, steady, s.open, isFinal)))
	assert.Empty(t, s.opened)
}

func TestReconnectConsumerBreaks(t *testing.T) {
	for stopAt := 1; stopAt <= 3; stopAt++ {
		s := &scripted{start: time.Now(), scripts: []script{{messages: []int{1, 2}, end: errLost}}}
		seen := 0
		for range stream.Reconnect(t.Context(), steady, s.open, isFinal) {
			if seen++; seen == stopAt {
				break
			}
		}
		assert.Equal(t, stopAt, seen)
		require.Len(t, s.ctxs, 1)
		assert.Error(t, s.ctxs[0].Err(), "the stream's context ends with it")
	}
}

func TestReconnectStreamContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{start: time.Now(), scripts: []script{{messages: []int{1}}, {end: errLost}}}
		for range stream.Reconnect(t.Context(), steady, s.open, isFinal) {
			for _, ctx := range s.ctxs[:len(s.ctxs)-1] {
				require.Error(t, ctx.Err())
			}
		}
		require.Len(t, s.ctxs, 3)
		require.Error(t, s.ctxs[2].Err())
	})
}

// The items are the concatenation of all streams, with one error after each stream. Two
// opens are never closer than the smallest delay.
func TestReconnectModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) { // a bubble has no Deadline to ask for
			ends := rapid.SampledFrom([]error{nil, errLost})
			scripts := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) script {
				return script{
					messages: rapid.SliceOfN(rapid.IntRange(1, 9), 0, 3).Draw(rt, "messages"),
					end:      ends.Draw(rt, "end"),
				}
			}), 0, 6).Draw(rt, "scripts")
			var want []item
			for _, s := range scripts {
				for _, m := range s.messages {
					want = append(want, item{m, nil})
				}
				if s.end == nil {
					s.end = stream.ErrEnded
				}
				want = append(want, item{0, s.end})
			}
			want = append(want, item{0, errFinal})

			s := &scripted{start: time.Now(), scripts: scripts}
			assert.Equal(rt, want, collect(stream.Reconnect(t.Context(), steady, s.open, isFinal)))
			for i := 1; i < len(s.opened); i++ {
				gap := s.opened[i] - s.opened[i-1]
				if gap < steady.Min || gap > steady.Max {
					rt.Fatalf("opens %v apart", gap)
				}
			}
		})
	})
}
