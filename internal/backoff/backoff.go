// Package backoff implements jittered exponential backoff, as in linkerd's
// proxy (its exp-backoff crate).
package backoff

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff specifies the waits between attempts, which double after each failure. The zero
// value means [Default]; see [Backoff.OrDefault].
type Backoff struct {
	Min    time.Duration // the wait before the second attempt; more than 0
	Max    time.Duration // the longest wait, including jitter; at least Min
	Jitter float64       // the largest random addition to a wait, as a share of the wait; 0 to 100
}

// Default returns the backoff that linkerd's outbound proxy uses: 100 ms to 60 s with a jitter of
// 0.1.
func Default() Backoff {
	return Backoff{Min: 100 * time.Millisecond, Max: time.Minute, Jitter: 0.1}
}

// Connect returns the backoff between two attempts to connect to an endpoint: 100 ms to 1 s with a
// jitter of 0.1. It can be short, because an endpoint that is not connected gets one attempt at a
// time, not one for each request.
func Connect() Backoff {
	return Backoff{Min: 100 * time.Millisecond, Max: time.Second, Jitter: 0.1}
}

// Validate returns an error that names the invalid field, or nil if b is valid.
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

// OrDefault returns a valid copy of b. The zero Backoff becomes [Default]. In any other, what is
// missing or invalid is corrected: a Max of 0 or less becomes the default or Min, whichever is
// longer, and a Min of 0 or less becomes the default or Max, whichever is shorter. A Max below
// Min becomes Min. Jitter is limited to 0 to 100.
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
	if !(b.Jitter >= 0) { // also if it is NaN
		b.Jitter = 0
	}
	b.Jitter = min(b.Jitter, 100)
	return b
}

// Delay returns the wait after the failed attempt n, counted from 0. The wait is
// min(Min·2ⁿ, Max) plus a random part of up to Jitter times this value, but at most Max. b
// must be valid.
func (b Backoff) Delay(n int) time.Duration {
	n = max(n, 0)
	d := b.Max
	if b.Min <= b.Max>>n { // Min<<n does not overflow
		d = b.Min << n
	}
	// Compared as a float, because the sum may overflow a Duration.
	extra := rand.Float64() * b.Jitter * float64(d)
	if extra >= float64(b.Max-d) {
		return b.Max
	}
	return d + time.Duration(extra)
}

// Sleep waits for d and returns nil. If ctx ends first, it returns the cause of ctx.
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

// Check returns an error that names the invalid field in b, or nil if b is valid. Unlike
// [Backoff.Validate], it allows a Min or Max of 0, which means the default.
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
