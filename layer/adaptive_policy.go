package layer

import (
	"fmt"
	"time"
)

// AdaptivePolicy bounds what [AdaptiveLimit] finds. The zero value of a field
// stands for its default.
type AdaptivePolicy struct {
	Min     int // the limit is never below; 1 to Max; default 1
	Max     int // nor above; at least Min; default 1000
	Initial int // what it starts with, Min to Max; default 20, or the nearest to that

	// Tolerance is how many times the latency without a queue may become
	// before the limit shrinks: 1.1 to 2; default 1.5. More keeps a server
	// busier whose latency varies, and lets a longer queue stand in it.
	Tolerance float64

	// Window is the least time between two changes of the limit: 1 ms to 1
	// min; default 100 ms.
	Window time.Duration
}

// DefaultAdaptivePolicy starts where Netflix's Gradient2 does, with its
// tolerance, and has the window and the bounds of Envoy's.
func DefaultAdaptivePolicy() AdaptivePolicy {
	return AdaptivePolicy{Min: 1, Max: 1000, Initial: 20, Tolerance: 1.5, Window: 100 * time.Millisecond}
}

// Validate returns an error that names the field that is wrong.
func (p AdaptivePolicy) Validate() error {
	set := p.filled()
	switch {
	case set.Min < 1:
		return fmt.Errorf("adaptive limit: min %d must be at least 1, or 0 for the default", p.Min)
	case set.Max < set.Min:
		return fmt.Errorf("adaptive limit: max %d must be at least min %d", set.Max, set.Min)
	case set.Initial < set.Min || set.Initial > set.Max:
		return fmt.Errorf("adaptive limit: initial %d must be from %d to %d", set.Initial, set.Min, set.Max)
	case !(set.Tolerance >= 1.1 && set.Tolerance <= 2):
		return fmt.Errorf("adaptive limit: tolerance %v must be from 1.1 to 2", p.Tolerance)
	case set.Window < time.Millisecond || set.Window > time.Minute:
		return fmt.Errorf("adaptive limit: window %v must be from 1ms to 1m", p.Window)
	}
	return nil
}

// filled puts defaults in place of what is 0.
func (p AdaptivePolicy) filled() AdaptivePolicy {
	def := DefaultAdaptivePolicy()
	if p.Min == 0 {
		p.Min = def.Min
	}
	if p.Max == 0 {
		p.Max = max(def.Max, p.Min)
	}
	if p.Initial == 0 {
		p.Initial = min(max(def.Initial, p.Min), p.Max)
	}
	if p.Tolerance == 0 {
		p.Tolerance = def.Tolerance
	}
	if p.Window == 0 {
		p.Window = def.Window
	}
	return p
}

// orDefault returns p made valid: what is out of range is moved to the end of
// the range that is nearest.
func (p AdaptivePolicy) orDefault() AdaptivePolicy {
	p = p.filled()
	p.Min = max(p.Min, 1)
	p.Max = max(p.Max, p.Min)
	p.Initial = min(max(p.Initial, p.Min), p.Max)
	if !(p.Tolerance >= 1.1) { // not a number, too
		p.Tolerance = 1.1
	}
	p.Tolerance = min(p.Tolerance, 2)
	p.Window = min(max(p.Window, time.Millisecond), time.Minute)
	return p
}
