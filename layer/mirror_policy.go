package layer

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// MirrorPolicy says which requests [Mirror] copies, and what it may spend on
// that. The zero MirrorPolicy is ready to use: its zero fields mean the
// defaults.
type MirrorPolicy[Req any] struct {
	// Target is what the copies go to, for people.
	Target string

	// Match chooses the requests. It is safe for concurrent use and does not
	// change them. Nil chooses all.
	Match func(Req) bool

	// Share of the requests that match, above 0 to 1. The default is all.
	Fraction float64

	// Body is how many bytes of a request's body are kept for its copy: 64 KiB
	// by default. Requests with a larger body are not copied. Less than 0: only
	// those without a body are.
	MaxBodyBytes int64

	// MaxInFlight is how many copies may be on their way at a time; what is beyond
	// is not sent. The default is 100, and so is a value below 0.
	MaxInFlight int

	// Timeout is how long a copy may take, its response included: 10 s by
	// default, and for a value below 0.
	Timeout time.Duration

	// Change, if not nil, makes of a copy what is sent: header fields that tell
	// it from the original, say. It may change what it is given, which is
	// nobody else's. It runs in a goroutine of the copy.
	Rewrite func(copied Req) Req

	// Rand returns numbers of at least 0 and less than 1 and is safe for
	// concurrent use; a test gives one that is not random. The default is
	// [rand.Float64].
	Rand func() float64
}

const (
	defaultMirrorBody     = 64 << 10
	defaultMirrorInFlight = 100
	defaultMirrorTimeout  = 10 * time.Second
)

// Validate returns an error that names the field that is out of range.
func (p MirrorPolicy[Req]) Validate() error {
	switch {
	case !(p.Fraction >= 0 && p.Fraction <= 1):
		return fmt.Errorf("mirror policy: share %v must be above 0 to 1, or 0 for all", p.Fraction)
	case p.MaxInFlight < 0:
		return fmt.Errorf("mirror policy: in flight %d must be more than 0, or 0 for %d", p.MaxInFlight, defaultMirrorInFlight)
	case p.Timeout < 0:
		return fmt.Errorf("mirror policy: timeout %v must be more than 0, or 0 for %v", p.Timeout, defaultMirrorTimeout)
	}
	return nil
}

// orDefault returns p made valid. A share that is no number, or below 0, copies
// nothing; one above 1 is 1.
func (p MirrorPolicy[Req]) orDefault() MirrorPolicy[Req] {
	switch {
	case p.Fraction == 0, p.Fraction > 1:
		p.Fraction = 1
	case !(p.Fraction > 0):
		p.Fraction = 0
	}
	if p.MaxBodyBytes == 0 {
		p.MaxBodyBytes = defaultMirrorBody
	}
	p.MaxBodyBytes = max(p.MaxBodyBytes, 0)
	if p.MaxInFlight <= 0 {
		p.MaxInFlight = defaultMirrorInFlight
	}
	if p.Timeout <= 0 {
		p.Timeout = defaultMirrorTimeout
	}
	if p.Rand == nil {
		p.Rand = rand.Float64
	}
	return p
}
