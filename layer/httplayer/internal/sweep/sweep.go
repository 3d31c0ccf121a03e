// Package sweep checks at regular intervals how long each connection of a server has been
// in its current phase. A connection records a new phase with one atomic store, which
// replaces a timer or a deadline for each phase.
package sweep

import (
	"sync"
	"sync/atomic"
	"time"
)

// Interval is the time between two checks of a connection. A time limit may be exceeded by
// about this time before it is enforced.
const Interval = 20 * time.Millisecond

// Conn is a connection that a [Sweeper] checks at every interval.
type Conn interface {
	// Sweep is called with the current phase and the time since the connection entered it.
	// The time is a multiple of Interval and may be 0. Sweep must not block.
	Sweep(phase uint32, age time.Duration)
}

// Sweeper calls Sweep of every registered connection once per [Interval], so that the connection
// can enforce its time limits. It uses one goroutine, which runs while connections are registered.
// The zero value is ready to use.
type Sweeper struct {
	tick atomic.Uint32

	mu    sync.Mutex
	slots map[*Slot]struct{}
	stop  chan struct{} // closed to end the goroutine; nil if none runs
}

// Slot is the registration of one connection with a [Sweeper].
type Slot struct {
	sweeper *Sweeper
	conn    Conn
	state   atomic.Uint64 // phase in the upper 32 bits, tick of its start in the lower 32
}

// Add registers the connection c for checks. The argument phase is the current phase of c, a number
// that the checks pass to the method Sweep of c. The caller records later phases by Enter of the
// returned Slot.
func (s *Sweeper) Add(c Conn, phase uint32) *Slot {
	slot := &Slot{sweeper: s, conn: c}
	slot.Enter(phase)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots == nil {
		s.slots = make(map[*Slot]struct{})
	}
	s.slots[slot] = struct{}{}
	if s.stop == nil {
		s.stop = make(chan struct{})
		go s.run(s.stop)
	}
	return slot
}

// Enter records phase as the current phase of the connection, and the current time as the
// beginning of the phase.
func (x *Slot) Enter(phase uint32) {
	x.state.Store(uint64(phase)<<32 | uint64(x.sweeper.tick.Load()))
}

// Phase returns the phase that was entered last.
func (x *Slot) Phase() uint32 { return uint32(x.state.Load() >> 32) }

// Remove ends the checks of the connection. A check that has begun may still be in progress
// after Remove returns.
func (x *Slot) Remove() {
	s := x.sweeper
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.slots, x)
	if len(s.slots) == 0 && s.stop != nil {
		close(s.stop)
		s.stop, s.slots = nil, nil
	}
}

func (s *Sweeper) run(stop chan struct{}) {
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	var all []*Slot
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		all = all[:0]
		s.mu.Lock()
		if s.stop != stop { // another goroutine checks the slots added since
			s.mu.Unlock()
			return
		}
		now := s.tick.Add(1)
		for slot := range s.slots {
			all = append(all, slot)
		}
		s.mu.Unlock()
		for i, slot := range all {
			state := slot.state.Load()
			age := time.Duration(now-uint32(state)) * Interval
			slot.conn.Sweep(uint32(state>>32), age)
			all[i] = nil
		}
	}
}
