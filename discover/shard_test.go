package discover

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// Between the retirement of an entry and its removal from the map, another one
// may have taken its place. That one stays.
func TestDropLeavesTheSuccessor(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := NewCache(ctx, func(context.Context, string) layer.Service[int, int] {
		return layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	})
	old, err := c.open(ctx, "a")
	require.NoError(t, err)
	old.done()
	old.retire()
	successor, err := c.open(ctx, "a")
	require.NoError(t, err)
	require.NotSame(t, old, successor)

	s := c.shard("a")
	s.drop([]*entry[string, int, int]{old})
	require.Same(t, successor, s.find("a"))
	successor.done()
	s.drop([]*entry[string, int, int]{successor})
	require.Nil(t, s.find("a"))
}
