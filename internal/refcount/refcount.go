// Package refcount counts the open uses of a service that will be removed: a
// cache entry, an endpoint or a configuration.
package refcount

import "sync/atomic"

// Count counts a service's open uses. Begin starts a use, and Done ends it. After Retire, Begin
// returns false and starts no use. Ended is then called as soon as no use is open. A Count must
// not be copied.
//
// The state is one word, so that Begin costs one atomic addition:
//
//	bits 63..32  number of calls of Begin, modulo 1<<32
//	bit  31      retired
//	bits 30..0   open uses
//
// The upper half shows whether a use has begun between two calls of Word.
type Count struct {
	// Ended is called when the Count is retired and no use is open. It may be called again
	// after a call of Begin that returned false.
	Ended func()

	word atomic.Uint64
}

const (
	oneUse   = 1<<32 | 1 // one call of Begin, and one open use
	retired  = 1 << 31
	openMask = retired - 1
)

// Begin starts a use and returns true. The caller must then call Done. If the Count is
// retired, Begin returns false.
func (c *Count) Begin() bool {
	if c.word.Add(oneUse)&retired == 0 {
		return true
	}
	// The addition counted a use, although the Count is retired. Done may then call Ended again.
	c.Done()
	return false
}

// Done ends a use that Begin started. Each successful Begin needs exactly one Done. After Retire,
// the last Done calls Ended.
func (c *Count) Done() {
	// Adding the largest number subtracts 1.
	if c.word.Add(^uint64(0))&(retired|openMask) == retired {
		c.Ended()
	}
}

// Retire makes every later Begin return false. It calls Ended if no use is open. Otherwise
// the Done of the last open use calls Ended.
func (c *Count) Retire() {
	if c.word.Or(retired)&openMask == 0 {
		c.Ended()
	}
}

// RetireUnused retires the Count if no use is open and no use has begun since Word returned word.
// It reports whether it retired the Count.
func (c *Count) RetireUnused(word uint64) bool {
	if word&openMask != 0 || !c.word.CompareAndSwap(word, word|retired) {
		return false
	}
	c.Ended()
	return true
}

// Word returns the Count's state, which changes with each Begin and each Done. Pass the result to
// RetireUnused.
func (c *Count) Word() uint64 { return c.word.Load() }

// Open returns the number of open uses.
func (c *Count) Open() int64 { return int64(c.word.Load() & openMask) }

// IsRetired reports whether Retire, or a successful RetireUnused, was called. Uses may still be open.
func (c *Count) IsRetired() bool { return c.word.Load()&retired != 0 }
