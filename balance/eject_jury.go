package balance

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// EjectedError is why an endpoint is out, as its [EndpointState] has it: use
// errors.As. It matches [layer.ErrNotReady].
type EjectedError struct {
	Cause string    // what it did: "5 failures in a row"
	Until time.Time // when it comes back, if the floor does not ask for it before
	Times int       // how often in a row it is out, this time included
}

// Error says until when, and why.
func (e *EjectedError) Error() string {
	return fmt.Sprintf("ejected until %s: %s", e.Until.UTC().Format(time.RFC3339), e.Cause)
}

// Is reports whether target is layer.ErrNotReady.
func (*EjectedError) Is(target error) bool { return target == layer.ErrNotReady }

// conduct is what the ejection of an endpoint depends on.
type conduct struct {
	// tally is how many responses there were since the last comparison (bits
	// 63..32) and how many of them failed (bits 31..0). An interval is an hour
	// at the most, which leaves room for a million a second.
	tally atomic.Uint64
	row   atomic.Uint32 // failures in a row

	// Guarded by the balancer's mutex.
	times    int           // how often it was ejected, less what was forgiven
	back     time.Duration // when it came back last, since the balancer began
	until    time.Duration // when it will
	sentence *EjectedError // nil if it is not ejected
}

const answered, failed = 1 << 32, 1

// jury takes endpoints out that fail. It is nil where no rule says so.
type jury struct {
	policy OutlierDetection
	most   int           // how often in a row, as far as it matters
	sooner chan struct{} // the next return may be sooner than it was

	// Guarded by the balancer's mutex.
	out                         []*endpoint // those that are ejected, in that order; some may be removed
	standings                   []standing  // of the last comparison, for its room
	ejections, spared, recalled uint64
}

func newJury(p OutlierDetection) *jury {
	if p.ConsecutiveFailures == 0 && p.Interval == 0 {
		return nil
	}
	most := (int64(p.MaxEjectionTime)-1)/int64(p.BaseEjectionTime) + 1 // rounded up
	return &jury{policy: p, most: int(min(most, math.MaxInt32)), sooner: make(chan struct{}, 1)}
}

// hear counts one response, and reports whether it was one failure too many. One
// that was throttled is a failure in the comparison; it is none in a row, nor does
// it end one: the endpoint is well, and without it the others would have to bear
// what was too much for all.
func (j *jury) hear(e *endpoint, v verdict) (tripped bool) {
	if j.policy.Interval > 0 {
		if v.failed {
			e.conduct.tally.Add(answered + failed)
		} else {
			e.conduct.tally.Add(answered)
		}
	}
	if j.policy.ConsecutiveFailures == 0 || v.throttled {
		return false
	}
	if v.failed {
		row := e.conduct.row.Add(1)
		e.status.mark()
		return row == uint32(j.policy.ConsecutiveFailures)
	}
	if e.status.marked() && e.conduct.row.Load() != 0 {
		e.conduct.row.Store(0)
	}
	return false
}

// condemn notes that e is out from now on, by a number at random, and returns
// for how long.
func (j *jury) condemn(e *endpoint, now time.Duration, random uint64) time.Duration {
	c := &e.conduct
	interval := j.policy.Interval
	if interval == 0 {
		interval = 10 * time.Second
	}
	// Who goes on failing is found by the second comparison after its return at
	// the latest. The interval until then is not to its credit.
	well := int(min(max((now-c.back)/interval-1, 0), math.MaxInt32))
	c.times = min(max(c.times-well, 0)+1, j.most)
	term := j.policy.MaxEjectionTime
	if c.times < j.most {
		term = j.policy.BaseEjectionTime * time.Duration(c.times)
	}
	term -= time.Duration(float64(term) * 0.1 * float64(random>>11) / (1 << 53))
	c.until = now + term
	j.out = append(j.out, e)
	j.ejections++
	select {
	case j.sooner <- struct{}{}:
	default:
	}
	return term
}

// acquit forgets what e was out for.
func (j *jury) acquit(e *endpoint, now time.Duration) {
	c := &e.conduct
	c.back, c.sentence = now, nil
	c.tally.Store(0)
	c.row.Store(0)
	e.status.setProven(0)
	if i := slices.Index(j.out, e); i >= 0 {
		j.out = slices.Delete(j.out, i, i+1)
	}
}

// stillOut forgets the endpoints that were removed while they were out, and
// returns those that are out, the first one first.
func (j *jury) stillOut() []*endpoint {
	j.out = slices.DeleteFunc(j.out, func(e *endpoint) bool { return e.status.state() != ejected })
	return j.out
}

// attributes is what the jury did, for Describe.
func (j *jury) attributes() layer.State {
	if j == nil {
		return nil
	}
	return layer.State{
		{Key: "ejected", Value: len(j.stillOut())},
		{Key: "ejections", Value: j.ejections},
		{Key: "spared", Value: j.spared},
		{Key: "recalled", Value: j.recalled},
	}
}
