// Package sweep checks the connections of a server at regular intervals. It
// replaces a timer or a deadline for each phase of each request by one atomic
// store.
package sweep

import (
	"sync"
	"sync/atomic"
	"time"
)

// Interval is the time between two checks of a connection, and so the accuracy
// of its limits.
const Interval = 20 * time.Millisecond

// Conn is checked at every interval.
type Conn interface {
	// Sweep is called with the current phase and the time since it was entered,
	// a multiple of Interval and possibly 0. It must not block.
	Sweep(phase uint32, age time.Duration)
}

// Sweeper checks connections on one goroutine, which exists while there are
// any. The zero value is ready to use.
type Sweeper struct {
	tick atomic.Uint32

	mu    sync.Mutex
	slots map[*Slot]struct{}
	stop  chan struct{} // of the goroutine
}

// Slot is a registered connection.
type Slot struct {
	sweeper *Sweeper
	conn    Conn
	state   atomic.Uint64 // phase and tick
}

// Add registers a connection in the given phase.
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

// Enter records that a phase begins now.
func (x *Slot) Enter(phase uint32) {
	x.state.Store(uint64(phase)<<32 | uint64(x.sweeper.tick.Load()))
}

// Phase returns the current phase.
func (x *Slot) Phase() uint32 { return uint32(x.state.Load() >> 32) }

// Remove ends the checks. One may still be in progress.
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
