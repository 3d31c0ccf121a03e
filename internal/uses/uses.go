// Package uses counts what is open in a service that will go away: a cache
// entry, an endpoint, a configuration. What is open finishes; nothing new
// begins; and only then is the end told.
package uses

import "sync/atomic"

// Count counts what is open in something. Once that is not wanted any more,
// the Count lets nothing new begin, and calls Ended when the last of what was
// open is done. It must not be copied.
//
// All of it is one word, so that beginning costs one atomic addition:
//
//	bits 63..32  how many ever began (it may wrap round)
//	bit  31      gone: nothing begins any more
//	bits 30..0   how many are open
//
// The upper half tells a sweeper that something was used since it last looked,
// without a clock being read for every use.
type Count struct {
	// Ended is called when the Count is retired and nothing is open: at least
	// once, and again by whoever tried to begin too late.
	Ended func()

	word atomic.Uint64
}

const (
	began    = 1<<32 | 1
	gone     = 1 << 31
	openMask = gone - 1
)

// Begin reports whether one more may begin. If so, Done must follow.
func (c *Count) Begin() bool {
	if c.word.Add(began)&gone == 0 {
		return true
	}
	c.Done()
	return false
}

// Done ends what Begin began.
func (c *Count) Done() {
	if c.word.Add(^uint64(0))&(gone|openMask) == gone {
		c.Ended()
	}
}

// Retire lets nothing new begin.
func (c *Count) Retire() {
	if c.word.Or(gone)&openMask == 0 {
		c.Ended()
	}
}

// RetireUnused retires if nothing began or ended since Word returned seen and
// nothing is open, and reports whether it did.
func (c *Count) RetireUnused(seen uint64) bool {
	if seen&openMask != 0 || !c.word.CompareAndSwap(seen, seen|gone) {
		return false
	}
	c.Ended()
	return true
}

// Word changes whenever something begins or ends.
func (c *Count) Word() uint64 { return c.word.Load() }

// Open returns how many are open.
func (c *Count) Open() int64 { return int64(c.word.Load() & openMask) }

// IsGone reports whether the Count is retired.
func (c *Count) IsGone() bool { return c.word.Load()&gone != 0 }
