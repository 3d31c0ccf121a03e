// Package sweep checks at regular intervals how long each connection of a server has been
// in its current phase. A connection records a new phase with one atomic store, which
// replaces a timer or a deadline for each phase.
package sweep

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Interval is the time between two checks of a connection. A time limit may be exceeded by
// about this time before it is enforced.
const Interval = 20 * time.Millisecond

// Forever is a time for which a connection needs no check.
const Forever time.Duration = math.MaxInt64

// Left returns the rest of a time limit at the age in the argument age. A limit of 0 means none.
func Left(limit, age time.Duration) time.Duration {
	if limit <= 0 {
		return Forever
	}
	return limit - age
}

// Conn is a connection that a [Sweeper] checks at every interval.
type Conn interface {
	// Sweep is called with the current phase and the time since the connection entered it.
	// The time is a multiple of Interval and may be 0. Sweep must not block. It returns the time
	// for which this phase needs no further check.
	Sweep(phase uint32, age time.Duration) (rest time.Duration)
}

// Sweeper calls Sweep of every registered connection once per [Interval], so that the connection
// can enforce its time limits. It uses one goroutine, which runs while connections are registered.
// The goroutine rests while no connection needs a check, because each wake-up of an idle process
// costs 200 µs of CPU time. The zero value is ready to use.
type Sweeper struct {
	tick    atomic.Uint32 // time of the last sweep or of the end of the last rest, in intervals
	resting atomic.Bool   // whether Wake must wake the goroutine; written with mu held

	mu    sync.Mutex
	began time.Time // begin of the current rest
	slots map[*Slot]struct{}
	wake  chan struct{} // wakes the goroutine, and is closed to end it; nil if none runs
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
	defer s.Wake()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wake == nil {
		s.slots, s.wake = make(map[*Slot]struct{}), make(chan struct{}, 1)
		go s.run(s.wake)
	}
	s.slots[slot] = struct{}{}
	return slot
}

// Enter records phase as the current phase of the connection, and the current time as the
// beginning of the phase.
func (x *Slot) Enter(phase uint32) {
	x.sweeper.Wake() // corrects the tick
	x.state.Store(uint64(phase)<<32 | uint64(x.sweeper.tick.Load()))
	x.sweeper.Wake() // if a rest began meanwhile
}

// Wake ends a rest. The caller has changed something that may require a check, without a new phase.
func (s *Sweeper) Wake() {
	if s.resting.Load() {
		s.endRest()
	}
}

// rested returns the time since the last sweep, in intervals. It is 1 unless the goroutine rests. The
// caller holds mu.
func (s *Sweeper) rested() uint32 {
	if !s.resting.Load() {
		return 1
	}
	return uint32((time.Since(s.began) + Interval/2) / Interval)
}

// endRest ends a rest and advances the tick by its duration.
func (s *Sweeper) endRest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.resting.Load() {
		return
	}
	s.tick.Add(s.rested())
	s.resting.Store(false)
	select {
	case s.wake <- struct{}{}:
	default:
	}
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
	if len(s.slots) == 0 && s.wake != nil {
		close(s.wake)
		s.wake, s.slots = nil, nil
		s.resting.Store(false)
	}
}

func (s *Sweeper) run(wake chan struct{}) {
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	var all []*Slot
	for {
		rest := Interval
		select {
		case _, open := <-wake: // a rest has ended, or a phase began during the last sweep
			if !open {
				return
			}
		case <-ticker.C:
			all, rest = s.sweep(wake, all[:0])
		}
		ticker.Reset(max(rest, Interval))
	}
}

// sweep checks all connections. It returns the shortest time for which none of them needs a check, and
// begins a rest if this time is longer than Interval. It also returns the empty slice all, which it uses
// as a buffer.
func (s *Sweeper) sweep(wake chan struct{}, all []*Slot) (_ []*Slot, rest time.Duration) {
	s.mu.Lock()
	if s.wake != wake { // another goroutine checks the slots added since
		s.mu.Unlock()
		return all, 0
	}
	now := s.tick.Add(s.rested())
	s.resting.Store(true) // before a phase is read, so that each later Enter calls endRest
	s.began = time.Now()
	for slot := range s.slots {
		all = append(all, slot)
	}
	s.mu.Unlock()
	rest = Forever
	for i, slot := range all {
		state := slot.state.Load()
		age := time.Duration(max(0, int32(now-uint32(state)))) * Interval // negative if endRest was called
		rest = min(rest, slot.conn.Sweep(uint32(state>>32), age))
		all[i] = nil
	}
	if rest <= Interval {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.wake == wake {
			s.resting.Store(false)
		}
	}
	return all, rest
}
