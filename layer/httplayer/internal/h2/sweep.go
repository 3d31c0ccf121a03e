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

// phaseLocked determines the phase of the connection, for example idle or within a header block. If
// the phase has changed, phaseLocked records it for the sweeper, which measures the time in each
// phase. The caller holds mu.
func (c *ServerConn) phaseLocked() {
	phase := uint32(phaseIdle)
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

// inBlock records the argument open, which reports whether the read buffer ends within a header
// block or a frame header. While open is true, the connection is in phaseBlock, which the sweeper
// limits to HeaderTimeout. The reader calls inBlock.
func (c *ServerConn) inBlock(open bool) {
	if open == c.inPart {
		return
	}
	c.mu.Lock()
	c.inPart = open
	c.phaseLocked()
	c.mu.Unlock()
}

// Sweep is part of [sweep.Conn]. It enforces the time limits of the configuration.
func (c *ServerConn) Sweep(phase uint32, age time.Duration) (rest time.Duration) {
	c.ticks.Add(1)
	if (phase == phasePreface || phase == phaseBlock) && over(age, c.cfg.HeaderTimeout) {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // makes the reader end the connection
	}
	if phase == phaseIdle && over(age, c.cfg.IdleTimeout) || c.cfg.Draining != nil && c.cfg.Draining.Load() {
		c.Drain()
	}
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
	if over(c.writes.Sweep(), c.cfg.WriteTimeout) {
		go c.fail(errWriteTimeout)
	}
	if phase == phaseActive || phase == phaseBlock {
		c.sweepStreams()
	}
	if phase != phaseIdle || age <= retireAfter || c.writes.Waits() {
		return 0
	}
	return sweep.Left(c.cfg.IdleTimeout, age)
}

func over(age, limit time.Duration) bool { return limit > 0 && age >= limit }

// sweepStreams enforces the limits on request bodies. It also resets each stream that could
// not send for WriteTimeout because the flow-control window of the client was exhausted.
func (c *ServerConn) sweepStreams() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.streams {
		if st.waiting && min(st.sendWindow, c.sendWindow) <= 0 { // else it waits for the writer
			st.stalled++
			if over(time.Duration(st.stalled)*sweep.Interval, c.cfg.WriteTimeout) {
				go st.reset(message.CodeCancel, errWriteTimeout)
			}
		}
		if st.reads != nil && st.reads.TooSlow(c.cfg.BodyIdle, c.cfg.MinBodyRate) {
			go st.failBody(message.ErrSlowBody)
		}
	}
}
