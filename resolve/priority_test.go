package resolve_test

import (
	"context"
	"errors"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

func TestWithPriority(t *testing.T) {
	lost := errors.New("lost")
	shared := []resolve.Endpoint{{Weight: 7, Priority: 3}}
	r := resolve.WithPriority(resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			_ = yield(resolve.Update{Kind: resolve.Add, Endpoints: shared}, nil) && yield(resolve.Update{}, lost) &&
				yield(resolve.Update{Kind: resolve.Empty}, nil)
		}
	}), 2)
	var kinds []resolve.Kind
	for u, err := range r.Resolve(t.Context(), "web") {
		if err != nil {
			require.Equal(t, lost, err)
			continue
		}
		kinds = append(kinds, u.Kind)
		for _, e := range u.Endpoints {
			require.Equal(t, resolve.Endpoint{Weight: 7, Priority: 2}, e)
		}
	}
	require.Equal(t, []resolve.Kind{resolve.Add, resolve.Empty}, kinds)
	require.EqualValues(t, 3, shared[0].Priority, "the update is not changed")
	require.Panics(t, func() { resolve.WithPriority(nil, 1) })
	for range r.Resolve(t.Context(), "web") {
		break
	}
}
