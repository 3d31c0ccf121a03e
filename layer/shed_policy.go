package layer

import "fmt"

// ShedPolicy says how much of the room that inner turned out to have a
// priority may fill, after inner refused a higher one, or while a higher one
// comes: see [Shed]. Of a share below 1 at least one place is kept free, and with
// 1 none. The zero value of a field stands for its default.
type ShedPolicy struct {
	Normal float64 // share left to normal requests, more than 0 to 1; default 0.9
	Low    float64 // to low ones, at most Normal; default 0.75
	Bulk   float64 // to bulk ones, at most Low; default 0.5
}

// Validate returns an error that names the field that is wrong.
func (p ShedPolicy) Validate() error {
	for _, f := range []struct {
		name  string
		share float64
	}{{"normal", p.Normal}, {"low", p.Low}, {"bulk", p.Bulk}} {
		if !(f.share >= 0 && f.share <= 1) {
			return fmt.Errorf("shed: %s %v must be from 0 (for the default) to 1", f.name, f.share)
		}
	}
	set := p.filled()
	switch {
	case set.Low > set.Normal:
		return fmt.Errorf("shed: low %v must be at most normal %v", set.Low, set.Normal)
	case set.Bulk > set.Low:
		return fmt.Errorf("shed: bulk %v must be at most low %v", set.Bulk, set.Low)
	}
	return nil
}

// filled puts the defaults in place of what is 0 or out of range. A default is
// never above the share of a higher priority.
func (p ShedPolicy) filled() ShedPolicy {
	valid := func(share float64) bool { return share > 0 && share <= 1 }
	if !valid(p.Normal) {
		p.Normal = 0.9
	}
	if !valid(p.Low) {
		p.Low = min(0.75, p.Normal)
	}
	if !valid(p.Bulk) {
		p.Bulk = min(0.5, p.Low)
	}
	return p
}

// orDefault returns the shares by rank, made valid.
func (p ShedPolicy) orDefault() [priorities - 1]float64 {
	p = p.filled()
	p.Low = min(p.Low, p.Normal)
	p.Bulk = min(p.Bulk, p.Low)
	return [priorities - 1]float64{p.Bulk, p.Low, p.Normal}
}
