package h2

import (
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

const (
	maxGlitches      = 1000
	glitchesDecay    = 50 // per second
	glitchesAnswered = 5  // are paid off by a response
	glitchesPerByte  = 1024

	glitchControl = 1                    // PING, PRIORITY, an unknown or empty frame, a tiny WINDOW_UPDATE
	glitchSetting = 2                    // SETTINGS, and a stream above the limit
	glitchStream  = 5                    // a stream error
	glitchLarge   = 2 * glitchesAnswered // a header list that is too large
	tinyUpdate    = 64

	youngStream = 250 * time.Millisecond // the reset of an older stream is not counted
	youngTicks  = uint32(youngStream / sweep.Interval)
)

// bucket counts events that are allowed at a rate and in a burst. The credit of
// time, responses and bytes is computed only when the limit is reached.
type bucket struct {
	used, limit int
	at          time.Time // of the last computation
	answered    uint32
}

// glitch counts frames of the peer that cost work and do not help a request. It
// returns an error if they are too many for the time, the responses and the bytes
// that were transferred.
func (c *conn) glitch(n int) error {
	b := &c.glitches
	if b.used += n; b.used <= b.limit {
		return nil
	}
	answered := c.answered.Load()
	paid := int(c.moved/glitchesPerByte) + glitchesAnswered*int(answered-b.answered)
	c.moved, b.answered = 0, answered
	return c.pay(b, paid, glitchesDecay, "too many control frames or errors")
}

// countReset counts the reset of a young stream, by the peer or because of its
// error.
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
