package reliability

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2" //nolint:depguard // its Framer, to attack with
)

// Rapid reset (CVE-2023-44487): the client opens streams and resets them immediately.
func TestRapidReset(t *testing.T) {
	resetAttack(t, takenBack)
}

func takenBack(c *raw, stream uint32) error {
	if err := c.request(stream, "GET", "/hold", true); err != nil {
		return err
	}
	return c.WriteRSTStream(stream, http2.ErrCodeCancel)
}

// MadeYouReset (CVE-2025-8671): the client makes the server reset the streams.
func TestMadeYouReset(t *testing.T) {
	resetAttack(t, func(c *raw, stream uint32) error {
		if err := c.request(stream, "POST", "/hold", false); err != nil {
			return err
		}
		return c.WriteRawFrame(http2.FrameWindowUpdate, 0, stream, []byte{0, 0, 0, 0}) // an increment of 0 is an error
	})
}

// resetAttack runs an attack during regular traffic.
func resetAttack(t *testing.T, open func(c *raw, stream uint32) error) {
	tn := newTestProxy(t)
	before, streams := heap(), size(20_000, 200_000)
	var conns, calmed int
	var longest time.Duration
	tn.under(t, func() {
		conns, calmed, longest = cutOff(t, tn.addr, streams, open)
		t.Logf("%d streams over %d connections, of which %d heard ENHANCE_YOUR_CALM; cut within %v",
			streams, conns, calmed, longest.Round(time.Millisecond))
		require.Eventually(t, func() bool { return tn.open.Load() == 0 }, patience, time.Millisecond, "upstream is let go")
		started := tn.started.Load()
		t.Logf("upstream: %d requests started, %.1f a connection; at most %d at once", started, float64(started)/float64(conns), tn.peak.Load())
		assert.LessOrEqual(t, started, int64(2*maxStreams*conns), "at most two for each stream that a connection may have")
	})
	assert.LessOrEqual(t, tn.peak.Load(), int64(maxStreams))
	assert.Positive(t, calmed)
	if full { // not certain in the short form on a busy machine
		assert.Less(t, longest, 2*time.Second)
	}
	growth := grown(t, before)
	t.Logf("heap: %+.1f MiB", growth)
	assert.Less(t, growth, 32.0)
}

// cutOff opens a new connection whenever the last one was closed, until all streams are sent. It
// returns the number of connections, how many of them received ENHANCE_YOUR_CALM, and how long the
// longest one stayed open.
func cutOff(t testing.TB, addr string, streams int, open func(c *raw, stream uint32) error) (conns, calmed int, longest time.Duration) {
	t.Helper()
	for sent := 0; sent < streams; conns++ {
		c, start, n := dialRaw(t, addr), time.Now(), 0
		for stream := uint32(1); sent+n < streams && open(c, stream) == nil; stream += 2 {
			if n++; hungUp(c) {
				break
			}
		}
		sent += n
		if n > 2*maxStreams { // more streams than a connection may reset
			<-c.over
			longest = max(longest, time.Since(start))
		}
		if code, ok := c.goAwayCode(); ok && code == http2.ErrCodeEnhanceYourCalm {
			calmed++
		}
		c.close()
	}
	return conns, calmed, longest
}

func hungUp(c *raw) bool {
	select {
	case <-c.over:
		return true
	default:
		_, ok := c.goAwayCode()
		return ok
	}
}
