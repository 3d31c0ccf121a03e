package h2

import (
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// Phases of a server connection, which the sweeper checks against the time limits.
const (
	phasePreface = iota // before the first SETTINGS of the client
	phaseBlock          // a header block or a frame header is not complete
	phaseIdle           // without streams and handlers
	phaseActive         // with streams or handlers
)

const retireAfter = time.Second // the idle workers of an idle connection end after this time

// phaseLocked recomputes the connection's phase after something has changed. The sweeper, a goroutine
// that all connections of a server share, measures the time in each phase and calls Sweep. The caller
// holds mu.
func (c *ServerConn) phaseLocked() {
	phase := uint32(phaseIdle)
	// An incomplete header comes first, because it has a time limit even while other streams are open.
	switch {
	case c.inPart:
		phase = phaseBlock
	case !c.quiet():
		phase = phaseActive
	case !c.settled:
		phase = phasePreface
	}
	if phase != c.slot.Phase() {
		c.slot.Enter(phase)
	}
}

// inBlock records open, which reports whether the read buffer ends within a header block or a frame
// header. While open is true, the connection is in phaseBlock, which the sweeper limits to
// HeaderTimeout. The reader calls inBlock.
func (c *ServerConn) inBlock(open bool) {
	if open == c.inPart {
		return
	}
	c.mu.Lock()
	c.inPart = open
	c.phaseLocked()
	c.mu.Unlock()
}

// Sweep implements [sweep.Conn]. The sweeper calls it about every sweep.Interval with the connection's
// phase and the time it has been in it. Sweep enforces the configured time limits, and frees memory of
// idle connections. rest is how long Sweep need not be called if nothing happens, or 0.
func (c *ServerConn) Sweep(phase uint32, age time.Duration) (rest time.Duration) {
	c.ticks.Add(1)
	if (phase == phasePreface || phase == phaseBlock) && exceeded(age, c.cfg.HeaderTimeout) {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // makes the reader end the connection
	}
	if phase == phaseIdle && exceeded(age, c.cfg.IdleTimeout) || c.cfg.Draining != nil && c.cfg.Draining.Load() {
		c.Drain()
	}
	// This is true for one or two calls in each idle time.
	if phase == phaseIdle && age >= retireAfter && age <= retireAfter+sweep.Interval {
		c.mu.Lock()
		c.retireWorkers()
		c.enc.slots = nil // allocated again when needed
		c.dec.values.Store(nil)
		if len(c.streams) == 0 {
			c.streams = make(map[uint32]*stream) // smaller than a map that had streams
		}
		c.mu.Unlock()
	}
	if exceeded(c.writes.Sweep(), c.cfg.WriteTimeout) {
		go c.fail(errWriteTimeout)
	}
	if phase == phaseActive || phase == phaseBlock {
		c.sweepStreams()
	}
	// Only an idle connection with nothing to write can be left alone until its idle timeout.
	if phase != phaseIdle || age <= retireAfter || c.writes.Waits() {
		return 0
	}
	return sweep.Left(c.cfg.IdleTimeout, age)
}

func exceeded(age, limit time.Duration) bool { return limit > 0 && age >= limit }

// sweepStreams enforces the time limits of the streams: it fails request bodies that arrive too slowly,
// and resets streams that could not send for WriteTimeout because the client did not enlarge its
// flow-control window.
func (c *ServerConn) sweepStreams() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.streams {
		if st.waiting && min(st.sendWindow, c.sendWindow) <= 0 { // else it waits for the writer
			st.stalled++
			if exceeded(time.Duration(st.stalled)*sweep.Interval, c.cfg.WriteTimeout) {
				// On new goroutines, because reset and failBody lock what the caller holds.
				go st.reset(message.CodeCancel, errWriteTimeout)
			}
		}
		if st.reads != nil && st.reads.TooSlow(c.cfg.BodyIdle, c.cfg.MinBodyRate) {
			go st.failBody(message.ErrSlowBody)
		}
	}
}
