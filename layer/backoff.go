package layer

import "github.com/gotower/gotower/internal/backoff"

// Backoff is jittered exponential back-off: the wait after failure n, counted
// from 0, is min(Min·2ⁿ, Max) and up to Jitter of it more, never above Max.
type Backoff = backoff.Backoff

// DefaultBackoff is what linkerd's outbound proxy uses: 100 ms to 60 s, a
// tenth of jitter.
func DefaultBackoff() Backoff { return backoff.Default() }
