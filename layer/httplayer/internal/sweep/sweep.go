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

// Forever is the time until the next check of a connection that has no time limit at present.
const Forever time.Duration = math.MaxInt64

// Left returns how much of a time limit remains at the given age. A limit of 0 means none.
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

// Sweeper calls Sweep on every registered connection once per [Interval], so that the connection can
// enforce its time limits. It uses one goroutine, which ends when no connection is registered. While no
// connection needs a check, the goroutine rests, that is, sleeps for longer than an Interval, because
// each wake-up of an idle process costs 200 µs of CPU time. The zero value is ready to use.
type Sweeper struct {
	tick    atomic.Uint32 // time of the last sweep or of the end of the last rest, in intervals
	resting atomic.Bool   // whether Wake must wake the goroutine; written with mu held

	mu    sync.Mutex
	start time.Time // begin of the current rest
	slots map[*Slot]struct{}
	wake  chan struct{} // wakes the goroutine, and is closed to end it; nil if none runs
}

// Slot is the registration of one connection with a [Sweeper].
type Slot struct {
	sweeper *Sweeper
	conn    Conn
	state   atomic.Uint64 // phase in the upper 32 bits, tick of its start in the lower 32
}

// Add registers the connection c for checks, which call its method Sweep. phase is a number of c's own
// for what it does now, such as waiting for a request. The checks pass it to Sweep, with the time that
// it has lasted. The caller records later phases with the returned Slot's Enter.
func (s *Sweeper) Add(c Conn, phase uint32) *Slot {
	slot := &Slot{sweeper: s, conn: c}
	slot.Enter(phase)
	// Deferred, because Wake may lock mu.
	defer s.Wake()
	s.mu.Lock()
	defer s.mu.Unlock()
	// The goroutine ends with the last connection, so the next connection starts another one.
	if s.wake == nil {
		s.slots, s.wake = make(map[*Slot]struct{}), make(chan struct{}, 1)
		go s.run(s.wake)
	}
	s.slots[slot] = struct{}{}
	return slot
}

// Enter records that the connection enters phase now. It costs little, and can be called several times
// for each request.
func (x *Slot) Enter(phase uint32) {
	x.sweeper.Wake() // during a rest, the tick is out of date
	x.state.Store(uint64(phase)<<32 | uint64(x.sweeper.tick.Load()))
	x.sweeper.Wake() // if a rest began meanwhile
}

// Wake makes a resting Sweeper check the connections again. Call it after a change that may need a
// check, unless Enter is called anyway.
func (s *Sweeper) Wake() {
	if s.resting.Load() {
		s.endRest()
	}
}

// rested returns how many intervals have passed since the last sweep: 1, or more if the goroutine
// rests. The caller holds mu.
func (s *Sweeper) rested() uint32 {
	if !s.resting.Load() {
		return 1
	}
	return uint32((time.Since(s.start) + Interval/2) / Interval)
}

// endRest wakes the goroutine that rests because no connection needs a check soon. It advances the
// tick by the intervals that have passed, as if there had been sweeps.
func (s *Sweeper) endRest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.resting.Load() {
		return
	}
	s.tick.Add(s.rested())
	s.resting.Store(false)
	// The channel holds one signal, which is enough to end the rest.
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Phase returns the phase that Enter set last. The connection defines what its phases mean.
func (x *Slot) Phase() uint32 { return uint32(x.state.Load() >> 32) }

// Remove ends the connection's checks. A check that has begun may still be in progress after
// Remove returns.
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

// run is the function of the Sweeper's goroutine. It ends when wake is closed.
func (s *Sweeper) run(wake chan struct{}) {
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	var slots []*Slot
	for {
		rest := Interval
		select {
		case _, open := <-wake: // a rest has ended, or a phase began during the last sweep
			if !open {
				return
			}
		case <-ticker.C:
			slots, rest = s.sweep(wake, slots[:0])
		}
		ticker.Reset(max(rest, Interval))
	}
}

// sweep calls Sweep on all connections. It returns for how long none of them needs another check. If
// that is longer than Interval, the Sweeper begins to rest. slots is a buffer, which is returned for
// the next call.
func (s *Sweeper) sweep(wake chan struct{}, slots []*Slot) (_ []*Slot, rest time.Duration) {
	s.mu.Lock()
	if s.wake != wake { // another goroutine checks the slots added since
		s.mu.Unlock()
		return slots, 0
	}
	now := s.tick.Add(s.rested())
	s.resting.Store(true) // before a phase is read, so that each later Enter calls endRest
	s.start = time.Now()
	for slot := range s.slots {
		slots = append(slots, slot)
	}
	s.mu.Unlock()
	rest = Forever
	for i, slot := range slots {
		state := slot.state.Load()
		// The difference of two ticks is right even after the counter has wrapped around.
		age := time.Duration(max(0, int32(now-uint32(state)))) * Interval // negative if endRest was called
		rest = min(rest, slot.conn.Sweep(uint32(state>>32), age))
		slots[i] = nil
	}
	// A connection needs the next check soon, so there is no rest.
	if rest <= Interval {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.wake == wake {
			s.resting.Store(false)
		}
	}
	return slots, rest
}
