package resolve_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/resolve"
)

// That we end streams which are well, sooner than the grace is over, is no reason
// to disbelieve for ever: it is over all the same, once a new stream says so too.
func TestKeepLastGoodRecycledStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := begin(t, resolve.StalePolicy{})
		defer o.cancel()
		o.blink(empty)
		for range 2 {
			time.Sleep(14 * time.Second)
			o.end("web", fmt.Errorf("%w: it is old", stream.ErrLimit))
			time.Sleep(time.Millisecond)
			assert.NotContains(t, o.news(), "empty")
			assert.True(t, o.kept(t).IsStale)
		}
		time.Sleep(2 * time.Second)
		assert.Equal(t, []string{"empty"}, o.news())
		assert.Equal(t, 1, strings.Count(o.log.String(), "held back"))
	})
}

// It is the new stream that decides, however long it takes.
func TestKeepLastGoodRecycledStreamThatIsNotBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := begin(t, resolve.StalePolicy{})
		defer o.cancel()
		o.blink(empty)
		time.Sleep(29 * time.Second)
		o.end("web", stream.ErrLimit)
		o.cut("web")
		time.Sleep(time.Hour)
		assert.NotContains(t, o.news(), "empty")
		assert.False(t, o.kept(t).IsStale, "what it said before it was lost counts no more")
		assert.Equal(t, 10, o.kept(t).Endpoints)
	})
}
