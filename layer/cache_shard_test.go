package layer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// After an entry was retired, a newer entry may have replaced it in the map. Removing the
// old one keeps the newer one.
func TestCacheDropKeepsNewerEntry(t *testing.T) {
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
