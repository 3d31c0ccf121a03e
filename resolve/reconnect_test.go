package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/stream"
)

var errLost = errors.New("lost")

type item struct {
	update Update
	err    error
	wait   time.Duration // before it
}

// streams is a resolver that plays one list of items a stream, and after the
// last list ends with ErrUnresolvable.
type streams struct {
	lists  [][]item
	opened []time.Time
}

func (s *streams) Resolve(_ context.Context, target string) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		n := len(s.opened)
		s.opened = append(s.opened, time.Now())
		if n == len(s.lists) {
			yield(Update{}, fmt.Errorf("%s: %w", target, ErrUnresolvable))
			return
		}
		for _, item := range s.lists[n] {
			time.Sleep(item.wait)
			if !yield(item.update, item.err) {
				return
			}
		}
	}
}

func news(u Update) item { return item{update: u} }

func play(t *testing.T, s *streams, b Backoff) []item {
	var got []item
	synctest.Test(t, func(t *testing.T) {
		for u, err := range Reconnect(s, b).Resolve(t.Context(), "web") {
			got = append(got, item{update: u, err: err})
		}
	})
	require.NotEmpty(t, got)
	last := got[len(got)-1]
	require.ErrorIs(t, last.err, ErrUnresolvable, "unresolvable is the last item")
	return got[:len(got)-1]
}

func TestReconnectFirstUpdate(t *testing.T) {
	add, remove := Update{Kind: Add, Endpoints: ends(a1)}, Update{Kind: Remove, Removed: []netip.AddrPort{addr(a1)}}
	replace := Update{Kind: Replace, Endpoints: ends(a1)}
	for name, tt := range map[string]struct{ in, want []Update }{
		"add":            {[]Update{add, add}, []Update{replace, add}},
		"replace":        {[]Update{replace, remove}, []Update{replace, remove}},
		"empty":          {[]Update{{Kind: Empty}, add}, []Update{{Kind: Empty}, add}},
		"does not exist": {[]Update{{Kind: DoesNotExist}, add}, []Update{{Kind: DoesNotExist}, add}},
		"empty replace":  {[]Update{{Kind: Replace}, add}, []Update{{Kind: Replace}, add}},
		"remove":         {[]Update{remove, remove, add, remove}, []Update{replace, remove}},
		"add of nothing": {[]Update{{Kind: Add}, add, {Kind: Add}}, []Update{replace, {Kind: Add}}},
		"nothing":        {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var list []item
			for _, u := range tt.in {
				list = append(list, news(u))
			}
			var got []Update
			ended := 0
			for _, item := range play(t, &streams{lists: [][]item{list, list}}, Backoff{}) {
				if item.err != nil {
					require.ErrorIs(t, item.err, stream.ErrEnded)
					require.EqualError(t, item.err, `resolve "web": stream ended`)
					ended++
					continue
				}
				got = append(got, item.update)
			}
			assert.Equal(t, 2, ended)
			assert.Equal(t, append(append([]Update(nil), tt.want...), tt.want...), got, "in both streams")
		})
	}
}

func TestReconnectErrors(t *testing.T) {
	add := Update{Kind: Add, Endpoints: ends(a1)}
	s := &streams{lists: [][]item{
		{news(add), {err: errLost}, news(Update{Kind: Empty})},
		{{err: errLost}},
		{news(add)},
	}}
	var got []string
	for _, item := range play(t, s, Backoff{}) {
		got = append(got, fmt.Sprint(item.update.Kind, " ", item.err))
	}
	assert.Equal(t, []string{
		"replace <nil>", "kind 0 lost",
		"kind 0 lost",
		"replace <nil>", `kind 0 resolve "web": stream ended`,
	}, got)
}

func TestReconnectBackoff(t *testing.T) {
	fails, empty := []item{{err: errLost}}, news(Update{Kind: Empty})
	lasts := func(d time.Duration) []item { return []item{empty, {err: errLost, wait: d}} }
	for name, tt := range map[string]struct {
		b     Backoff
		lists [][]item
		want  []time.Duration // between the end of a stream and the next one
	}{
		"it grows to max": {
			Backoff{Min: time.Second, Max: 3 * time.Second}, [][]item{fails, fails, {}, fails}, []time.Duration{1, 2, 3, 3},
		},
		"it starts again": {
			Backoff{Min: time.Second, Max: time.Minute},
			[][]item{fails, fails, lasts(10 * time.Second), fails}, []time.Duration{1, 2, 1, 2},
		},
		"max is less than ten seconds": {
			Backoff{Min: time.Second, Max: 3 * time.Second},
			[][]item{fails, fails, lasts(3 * time.Second), fails}, []time.Duration{1, 2, 1, 2},
		},
		"it was too short": {
			Backoff{Min: time.Second, Max: time.Minute},
			[][]item{lasts(0), lasts(0), {empty}, lasts(9 * time.Second), fails}, []time.Duration{1, 2, 4, 8, 16},
		},
		"it brought nothing": {
			Backoff{Min: time.Second, Max: time.Minute},
			[][]item{fails, {{err: errLost, wait: time.Hour}}, fails}, []time.Duration{1, 2, 4},
		},
		"min is max": {Backoff{Max: time.Minute, Min: time.Minute}, [][]item{fails, fails, lasts(0)}, []time.Duration{60, 60, 60}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &streams{lists: tt.lists}
			play(t, s, tt.b)
			for i, want := range tt.want {
				ended := s.opened[i]
				for _, item := range tt.lists[i] {
					ended = ended.Add(item.wait)
				}
				assert.Equal(t, want*time.Second, s.opened[i+1].Sub(ended), "wait %d", i)
			}
		})
	}
}

// A zero backoff is not a busy loop.
func TestReconnectDefaultBackoff(t *testing.T) {
	s := &streams{lists: [][]item{{{err: errLost}}}}
	play(t, s, Backoff{})
	wait := s.opened[1].Sub(s.opened[0])
	assert.GreaterOrEqual(t, wait, 100*time.Millisecond)
	assert.LessOrEqual(t, wait, 110*time.Millisecond)
}

// The set stays until the first update of the next stream, which replaces it.
func TestReconnectKeepsSet(t *testing.T) {
	s := &streams{lists: [][]item{
		{news(Update{Kind: Add, Endpoints: ends(a1)}), news(Update{Kind: Add, Endpoints: ends(a2)}), {err: errLost}},
		{{err: errLost}},
		{news(Update{Kind: Remove, Removed: []netip.AddrPort{addr(a1)}}), news(Update{Kind: Add, Endpoints: ends(a2, a3)})},
	}}
	var set Set
	var lens []int
	for _, item := range play(t, s, Backoff{}) {
		set.Apply(item.update)
		lens = append(lens, set.Len())
	}
	assert.Equal(t, []int{1, 2, 2, 2, 2, 2}, lens)
	assert.Equal(t, ends(a2, a3), set.Endpoints())
}

func TestReconnectContext(t *testing.T) {
	var seen []context.Context
	r := Func(func(ctx context.Context, _ string) iter.Seq2[Update, error] {
		seen = append(seen, ctx)
		return func(yield func(Update, error) bool) { yield(Update{Kind: Empty}, nil) }
	})
	for range Reconnect(r, Backoff{}).Resolve(t.Context(), "web") {
		break
	}
	require.Len(t, seen, 1)
	require.Error(t, seen[0].Err())
}
