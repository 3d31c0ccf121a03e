package h2

import (
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// Phases of a connection for the sweeper.
const (
	phasePreface = iota // before the first SETTINGS
	phaseBlock          // in an unfinished header block
	phaseIdle
	phaseActive
)

const (
	retireAfter  = time.Second // the workers of an idle connection end
	defaultDrain = 5 * time.Second
)

// phaseLocked enters the phase of the current state, with mu held.
func (c *ServerConn) phaseLocked() {
	phase := uint32(phaseIdle)
	switch {
	case c.slot == nil:
		return
	case c.inPart:
		phase = phaseBlock
	case len(c.streams) > 0 || c.handlers > 0:
		phase = phaseActive
	case !c.greeted:
		phase = phasePreface
	}
	if phase != c.slot.Phase() {
		c.slot.Enter(phase)
	}
}

// inBlock notes whether a header block or a frame head is unfinished.
func (c *ServerConn) inBlock(open bool) {
	if open == c.blockOpen {
		return
	}
	c.blockOpen = open
	c.mu.Lock()
	c.inPart = open
	c.phaseLocked()
	c.mu.Unlock()
}

// sweepState is the state of a connection between two calls of Sweep.
type sweepState struct {
	writes  uint32 // at the last check
	writing time.Duration
	drain   time.Duration
	bodies  []*serverStream
}

// Sweep is part of [sweep.Conn]. It enforces all time limits.
func (c *ServerConn) Sweep(phase uint32, age time.Duration) {
	c.ticks.Add(1)
	if (phase == phasePreface || phase == phaseBlock) && over(age, c.cfg.HeaderTimeout) {
		go c.interrupt(calmError("header timeout"))
	}
	if phase == phaseIdle && over(age, c.cfg.IdleTimeout) {
		c.Drain()
	}
	if phase == phaseIdle && age == retireAfter {
		c.mu.Lock()
		c.retireWorkers()
		c.mu.Unlock()
	}
	c.sweepWrite()
	if c.drains.Load() {
		c.sweepDrain()
	}
	if phase == phaseActive || phase == phaseBlock {
		c.sweepStreams()
	}
}

func over(age, limit time.Duration) bool { return limit > 0 && age >= limit }

// sweepWrite ends a connection whose Write makes no progress.
func (c *ServerConn) sweepWrite() {
	s := &c.sweeps
	writes := c.writes.Load()
	if writes%2 == 0 || writes != s.writes {
		s.writes, s.writing = writes, 0
		return
	}
	if s.writing += sweep.Interval; over(s.writing, c.cfg.WriteTimeout) {
		go c.fail(errWriteTimeout)
	}
}

// sweepDrain sends the second GOAWAY to a client that does not answer the PING.
func (c *ServerConn) sweepDrain() {
	limit := c.cfg.DrainTimeout
	if limit <= 0 {
		limit = defaultDrain
	}
	if c.sweeps.drain += sweep.Interval; c.sweeps.drain >= limit {
		c.drainAcked()
	}
}

// sweepStreams enforces the limits of request bodies, and of clients that give
// no window.
func (c *ServerConn) sweepStreams() {
	var failed []*stream
	c.mu.Lock()
	bodies := c.limited.Load() > 0
	for _, st := range c.streams {
		if st.waiting && min(st.sendWindow, c.sendWindow) <= 0 { // else it waits for the writer
			st.stalled++
			if over(time.Duration(st.stalled)*sweep.Interval, c.cfg.WriteTimeout) {
				failed = append(failed, st)
			}
		}
		if bodies {
			c.sweeps.bodies = append(c.sweeps.bodies, st.server)
		}
	}
	c.mu.Unlock()
	for _, st := range failed {
		st.reset(message.CodeCancel, errWriteTimeout)
	}
	for i, s := range c.sweeps.bodies {
		s.sweepBody(c.cfg)
		c.sweeps.bodies[i] = nil
	}
	c.sweeps.bodies = c.sweeps.bodies[:0]
}

// sweepBody fails a limited request body that arrives too slowly while the
// handler waits for it.
func (s *serverStream) sweepBody(cfg *message.ServerConfig) {
	s.mu.Lock()
	slow := false
	if s.reading && s.limited {
		s.pause += sweep.Interval
		s.waited += sweep.Interval
		slow = over(s.pause, cfg.BodyIdle) || cfg.MinBodyRate > 0 && s.waited > max(cfg.BodyIdle, time.Second) &&
			float64(s.got) < s.waited.Seconds()*float64(cfg.MinBodyRate)
	}
	s.mu.Unlock()
	if slow {
		s.failBody(message.ErrSlowBody)
	}
}
