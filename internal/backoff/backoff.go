// Package backoff is jittered exponential back-off, as linkerd's proxy does it
// (its exp-backoff crate).
package backoff

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff is how long to wait between attempts. The zero value stands for
// [Default]; see [Backoff.OrDefault].
type Backoff struct {
	Min    time.Duration // before the second attempt; more than 0
	Max    time.Duration // at the most, jitter included; at least Min
	Jitter float64       // share of the delay that is added at random, 0 to 100
}

// Default is what linkerd's outbound proxy uses: 100 ms to 60 s, a tenth of
// jitter.
func Default() Backoff {
	return Backoff{Min: 100 * time.Millisecond, Max: time.Minute, Jitter: 0.1}
}

// Connect is what endpoints use between attempts to connect: 100 ms to 1 s, a
// tenth of jitter. It is short because an address that answers again must get
// requests soon, and one attempt at a time is cheap.
func Connect() Backoff {
	return Backoff{Min: 100 * time.Millisecond, Max: time.Second, Jitter: 0.1}
}

// Validate returns an error that names the field that is wrong.
func (b Backoff) Validate() error {
	switch {
	case b.Min <= 0:
		return fmt.Errorf("backoff: min %v must be more than 0", b.Min)
	case b.Max < b.Min:
		return fmt.Errorf("backoff: max %v must be at least min %v", b.Max, b.Min)
	case !(b.Jitter >= 0 && b.Jitter <= 100):
		return fmt.Errorf("backoff: jitter %v must be from 0 to 100", b.Jitter)
	}
	return nil
}

// OrDefault returns b made valid, for constructors that cannot fail. The zero
// Backoff becomes [Default]. Otherwise a Max that is not said (0 or less) is
// the default's, a Min that is not said the default's or Max if that is less, a
// Max below Min is Min, and Jitter is held to 0 to 100.
func (b Backoff) OrDefault() Backoff {
	def := Default()
	if b == (Backoff{}) {
		return def
	}
	if b.Max <= 0 {
		b.Max = max(def.Max, b.Min)
	}
	if b.Min <= 0 {
		b.Min = min(def.Min, b.Max)
	}
	b.Max = max(b.Max, b.Min)
	if !(b.Jitter >= 0) { // not a number, too
		b.Jitter = 0
	}
	b.Jitter = min(b.Jitter, 100)
	return b
}

// Delay is the wait after attempt n failed, counted from 0:
// min(Min·2ⁿ, Max), plus up to Jitter of it, never above Max. Once Max is
// reached nothing is added: the earlier jitter has spread the callers by then.
// b must be valid.
func (b Backoff) Delay(n int) time.Duration {
	n = max(n, 0)
	d := b.Max
	if b.Min <= b.Max>>n { // so Min<<n does not overflow
		d = b.Min << n
	}
	// Compared as a float: the sum may not fit in a Duration.
	extra := rand.Float64() * b.Jitter * float64(d)
	if extra >= float64(b.Max-d) {
		return b.Max
	}
	return d + time.Duration(extra)
}

// Sleep waits for d, or returns the cause of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Check returns an error that names the field of b that is out of range. A field
// that is 0 stands for its default.
func Check(b Backoff) error {
	full := b.OrDefault()
	if b.Min != 0 {
		full.Min = b.Min
	}
	if b.Max != 0 {
		full.Max = b.Max
	}
	full.Jitter = b.Jitter
	return full.Validate()
}
