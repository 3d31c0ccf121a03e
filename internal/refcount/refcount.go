// Package refcount counts the open uses of a service that will be removed: a
// cache entry, an endpoint or a configuration.
package refcount

import "sync/atomic"

// Count counts open uses. After Retire it accepts no new use, and it calls
// Ended once no use is open. It must not be copied.
//
// One word holds the whole state, so that Begin costs one atomic addition:
//
//	bits 63..32  number of calls of Begin, modulo 1<<32
//	bit  31      retired
//	bits 30..0   open uses
//
// The upper half shows whether a use began between two calls of Word, without
// a clock.
type Count struct {
	// Ended is called when the Count is retired and no use is open. It is called
	// at least once, and again after each Begin that came too late.
	Ended func()

	word atomic.Uint64
}

const (
	began    = 1<<32 | 1
	retired  = 1 << 31
	openMask = retired - 1
)

// Begin begins a use and reports whether it could. If so, Done must follow.
func (c *Count) Begin() bool {
	if c.word.Add(began)&retired == 0 {
		return true
	}
	c.Done()
	return false
}

// Done ends a use.
func (c *Count) Done() {
	if c.word.Add(^uint64(0))&(retired|openMask) == retired {
		c.Ended()
	}
}

// Retire makes every later Begin return false.
func (c *Count) Retire() {
	if c.word.Or(retired)&openMask == 0 {
		c.Ended()
	}
}

// RetireUnused retires the Count if no use is open and none began since Word
// returned seen. It reports whether it did.
func (c *Count) RetireUnused(seen uint64) bool {
	if seen&openMask != 0 || !c.word.CompareAndSwap(seen, seen|retired) {
		return false
	}
	c.Ended()
	return true
}

// Word returns a value that changes with each Begin and each Done.
func (c *Count) Word() uint64 { return c.word.Load() }

// Open returns the number of open uses.
func (c *Count) Open() int64 { return int64(c.word.Load() & openMask) }

// IsGone reports whether the Count is retired.
func (c *Count) IsGone() bool { return c.word.Load()&retired != 0 }
