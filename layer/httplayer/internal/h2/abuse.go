package h2

import (
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

const (
	maxGlitches      = 1000
	glitchesDecay    = 50   // subtracted from the count per second
	glitchesAnswered = 5    // subtracted from the count for each response
	bytesPerGlitch   = 1024 // transferred bytes that subtract 1 from the count

	glitchControl = 1                    // PING, PRIORITY, an unknown or empty frame, a tiny WINDOW_UPDATE
	glitchSetting = 2                    // SETTINGS, which also cost 1 per setting, and a stream above the limit
	glitchStream  = 5                    // a stream error
	glitchLarge   = 2 * glitchesAnswered // a header list that is too large
	tinyUpdate    = 64

	youngStream = 250 * time.Millisecond // resets of older streams are not counted
	youngTicks  = uint32(youngStream / sweep.Interval)
)

// bucket counts what a peer could do to waste work: streams it opens and resets (see countReset),
// or frames that contribute nothing to a request (see glitch). The count goes down over time and
// with each response; that of useless frames also goes down with transferred bytes. To keep
// counting cheap, the decrease is computed only when the count exceeds limit. If the count is still
// above limit then, the connection ends.
type bucket struct {
	used, limit  int           // the count, and the value that it may reach
	decreaseTime time.Duration // time of the last decrease, since the start of the connection
	answered     uint32        // number of responses at the last decrease
}

// glitch adds n to the count of frames that cost work but contribute nothing to a request. If the
// count then exceeds its limit, glitch decreases it for the elapsed time, the responses and the
// transferred bytes. If the count is still too large, glitch returns an error, which ends the
// connection. It also does so if more than maxQueuedOutput bytes are queued for the peer, because a
// peer that causes replies without reading them could otherwise use memory without a limit.
func (c *conn) glitch(n int) error {
	c.mu.Lock()
	queued := c.queuedBytes()
	c.mu.Unlock()
	if queued > maxQueuedOutput {
		return connError(message.CodeEnhanceYourCalm, "the peer does not read")
	}
	b := &c.glitches
	if b.used += n; b.used <= b.limit {
		return nil
	}
	// Swap returns the bytes since the last decrease, and starts the next count at 0.
	b.used -= int(c.moved.Swap(0) / bytesPerGlitch)
	return c.pay(b, glitchesAnswered, glitchesDecay, "too many control frames or errors")
}

// countReset counts that the stream st was reset, by the peer or because of the peer's error. It
// does nothing on a client, without MaxStreamResets, or if st was open for youngStream or longer.
// The count decreases with time and by one for each response. If there are too many resets,
// countReset returns an error, which ends the connection.
func (c *conn) countReset(st *stream) error {
	b := &c.resets
	if b.limit <= 0 || c.server.ticks.Load()-st.born >= youngTicks {
		return nil
	}
	if b.used++; b.used <= b.limit {
		return nil
	}
	return c.pay(b, 1, b.limit, "too many streams were reset")
}

// pay lowers b's count by perAnswer for each response and by perSecond for each second since the
// last decrease. It returns an error with the given reason, which ends the connection, if the count
// is still above the limit.
func (c *conn) pay(b *bucket, perAnswer, perSecond int, reason string) error {
	now := time.Since(c.started)
	answered := c.answered.Load()
	paid := perAnswer*int(answered-b.answered) + int((now-b.decreaseTime).Seconds()*float64(perSecond))
	b.decreaseTime, b.answered = now, answered
	if b.used = max(0, b.used-paid); b.used > b.limit {
		return connError(message.CodeEnhanceYourCalm, reason)
	}
	return nil
}
