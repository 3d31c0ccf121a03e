package h2

import (
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

const (
	maxGlitches      = 1000
	glitchesDecay    = 50   // subtracted from the count per second
	glitchesAnswered = 5    // subtracted from the count for each response
	bytesPerGlitch   = 1024 // transferred bytes that subtract 1 from the count

	glitchControl = 1                    // PING, PRIORITY, an unknown or empty frame, a tiny WINDOW_UPDATE
	glitchSetting = 2                    // SETTINGS, and a stream above the limit
	glitchStream  = 5                    // a stream error
	glitchLarge   = 2 * glitchesAnswered // a header list that is too large
	tinyUpdate    = 64

	youngStream = 250 * time.Millisecond // resets of older streams are not counted
	youngTicks  = uint32(youngStream / sweep.Interval)
)

// bucket counts events of one kind that the peer causes: resets, or frames that contribute nothing
// to a request (see countReset and glitch). The count decreases with time and with each response.
// The count of useless frames also decreases with transferred bytes. The decrease is computed only
// when the count exceeds limit. If the count is then still above limit, the connection ends.
type bucket struct {
	used, limit int
	at          time.Time // time of the last decrease
	answered    uint32    // number of responses at the last decrease
}

// glitch adds n to the count of frames that cost work but contribute nothing to a request. If the
// count then exceeds its limit, glitch decreases it for the elapsed time, the responses and the
// transferred bytes. If the count is still too large, glitch returns an error, which ends the
// connection.
func (c *conn) glitch(n int) error {
	b := &c.glitches
	if b.used += n; b.used <= b.limit {
		return nil
	}
	answered := c.answered.Load()
	c.mu.Lock()
	moved := c.moved + c.sent
	c.sent = 0
	c.mu.Unlock()
	paid := int(moved/bytesPerGlitch) + glitchesAnswered*int(answered-b.answered)
	c.moved, b.answered = 0, answered
	return c.pay(b, paid, glitchesDecay, "too many control frames or errors")
}

// countReset counts a reset of the stream st by the peer or because of an error of the peer. It
// does nothing on a client, without a limit MaxStreamResets, or if st was open for youngStream or
// longer. The count decreases with time and by one for each response. If there are too many resets,
// countReset returns an error, which ends the connection.
func (c *conn) countReset(st *stream) error {
	b := &c.resets
	if c.server == nil || b.limit <= 0 || c.server.ticks.Load()-st.born >= youngTicks {
		return nil
	}
	if b.used++; b.used <= b.limit {
		return nil
	}
	answered := c.answered.Load()
	paid := int(answered - b.answered)
	b.answered = answered
	return c.pay(b, paid, b.limit, "too many streams were reset")
}

func (c *conn) pay(b *bucket, paid, perSecond int, reason string) error {
	now := time.Now()
	since := now.Sub(b.at)
	if b.at.IsZero() {
		since = now.Sub(c.started)
	}
	b.at = now
	b.used = max(0, b.used-paid-int(since.Seconds()*float64(perSecond)))
	if b.used > b.limit {
		return calmError(reason)
	}
	return nil
}
