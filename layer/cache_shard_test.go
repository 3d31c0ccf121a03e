package layer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// Between the retirement of an entry and its removal from the map, another one
// may have taken its place. That one stays.
func TestCacheDropLeavesTheSuccessor(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := NewCache(ctx, func(context.Context, string) Service[int, int] {
		return Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	}, CachePolicy{})
	old, err := c.open(ctx, "a")
	require.NoError(t, err)
	old.Done()
	old.Retire()
	successor, err := c.open(ctx, "a")
	require.NoError(t, err)
	require.NotSame(t, old, successor)

	s := c.shard("a")
	s.drop([]*cacheEntry[string, int, int]{old})
	require.Same(t, successor, s.find("a"))
	successor.Done()
	s.drop([]*cacheEntry[string, int, int]{successor})
	require.Nil(t, s.find("a"))
}
