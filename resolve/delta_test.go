package resolve_test

import (
	"context"
	"iter"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// yielding returns a resolver that yields the updates and an error, and ends.
func yielding(updates ...resolve.Update) resolve.Resolver {
	return resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			for _, u := range updates {
				if !yield(u, nil) {
					return
				}
			}
			yield(resolve.Update{}, errReset)
		}
	})
}

func TestDelta(t *testing.T) {
	replace := func(addrs ...string) resolve.Update {
		u := add(addrs...)
		u.Kind = resolve.Replace
		return u
	}
	h2, heavy := add(a1), add(a2)
	h2.Endpoints[0].Protocol = resolve.H2
	heavy.Endpoints[0].Weight = 7
	both := replace(a1, a2)
	both.Endpoints[0], both.Endpoints[1] = h2.Endpoints[0], heavy.Endpoints[0]
	for name, tt := range map[string]struct{ in, want []resolve.Update }{
		"first answer":      {[]resolve.Update{add(), remove(a1), add(a2, a1, a2)}, []resolve.Update{replace(a1, a2)}},
		"the same again":    {[]resolve.Update{add(a1), replace(a1), add(a1), add(), remove(b1)}, []resolve.Update{replace(a1)}},
		"grows":             {[]resolve.Update{add(a1), replace(b1, a2, a1)}, []resolve.Update{replace(a1), add(a2, b1)}},
		"shrinks":           {[]resolve.Update{add(a1, a2, b1), replace(a2)}, []resolve.Update{replace(a1, a2, b1), remove(a1, b1)}},
		"grows and shrinks": {[]resolve.Update{add(a1, a2), replace(a2, b1)}, []resolve.Update{replace(a1, a2), replace(a2, b1)}},
		"removed to nothing": {
			[]resolve.Update{add(a1), remove(a1), empty, replace(), gone, gone, add(a1)},
			[]resolve.Update{replace(a1), empty, gone, replace(a1)},
		},
		"only part of a removal": {[]resolve.Update{add(a1, a2), remove(a1, b1)}, []resolve.Update{replace(a1, a2), remove(a1)}},
		"another ID, and another weight": {
			[]resolve.Update{add(a1, a2), both},
			[]resolve.Update{replace(a1, a2), {Kind: resolve.Add, Endpoints: both.Endpoints}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []resolve.Update
			var errs []error
			for u, err := range resolve.Merge(yielding(tt.in...)).Resolve(t.Context(), "web") {
				if err != nil {
					errs = append(errs, err)
					continue
				}
				got = append(got, u)
			}
			assert.Equal(t, tt.want, got)
			require.Len(t, errs, 2, "of the resolver, and that it ended")
			require.ErrorIs(t, errs[0], errReset)
		})
	}
}

func TestDeltaAfterError(t *testing.T) {
	j := &journal{}
	items := []struct {
		update resolve.Update
		err    error
	}{
		{err: errReset}, {update: add()}, {update: add(a1)}, {update: add(a1)}, // the first answer is news anyway
		{err: errReset}, {err: errReset}, {update: add(a1)}, {update: add(a1)},
		{err: errReset}, {update: add(a2)}, {update: add(a2)},
		{err: errReset}, {update: remove(b1)}, {update: gone}, {err: errReset}, {update: gone},
	}
	r := resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			for _, it := range items {
				if !yield(it.update, it.err) {
					return
				}
			}
		}
	})
	for u, err := range resolve.Merge(r).Resolve(t.Context(), "web") {
		j.write(u, err)
	}
	const reset = "merge: source 1 of 1: connection reset"
	assert.Equal(t, []string{
		reset, "replace " + a1, reset, reset, "replace " + a1, reset, "add " + a2,
		reset, "replace " + a1 + " " + a2, "does not exist", reset, "does not exist",
	}, j.lines[:len(j.lines)-1], "the last line is the end of the resolver")
}
