package profiles

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// maxRetries is how often layer.Retry sends a request again at the most.
const maxRetries = 99

// outOfRange returns an error for each piece of the route, apart from its
// condition and classes, that does not hold because it is out of its range.
func (r Route) outOfRange() []error {
	var problems []error
	notBelow := func(what string, d time.Duration) {
		if d < 0 {
			problems = append(problems, fmt.Errorf("%s %v is below 0", what, d))
		}
	}
	notBelow("timeout", r.Timeout)
	notBelow("try timeout", r.AttemptTimeout)
	notBelow("hedge", r.Hedge)
	if r.MaxRetries < 0 || r.MaxRetries > maxRetries {
		problems = append(problems, fmt.Errorf("max retries %d is not from 0 to %d", r.MaxRetries, maxRetries))
	}
	if r.Limit < 0 {
		problems = append(problems, fmt.Errorf("limit %d is below 0", r.Limit))
	}
	if err := r.Rate.Validate(); err != nil {
		problems = append(problems, err)
	}
	return append(append(problems, r.changeProblems()...), mirrorProblems(r.Mirrors)...)
}

// inRange is the route without those pieces.
func (r Route) inRange() Route {
	r.Timeout, r.AttemptTimeout, r.Hedge = max(r.Timeout, 0), max(r.AttemptTimeout, 0), max(r.Hedge, 0)
	if r.MaxRetries < 0 || r.MaxRetries > maxRetries {
		r.MaxRetries = 0
	}
	r.Limit = max(r.Limit, 0)
	if r.Rate.Validate() != nil {
		r.Rate = Rate{}
	}
	r.Mirrors = validMirrors(r.Mirrors)
	return r.validChanges()
}

// Validate says which field is out of its range, or returns nil.
func (r Rate) Validate() error {
	switch {
	case !(r.PerSecond >= 0 && r.PerSecond <= math.MaxFloat64):
		return fmt.Errorf("rate: %v a second is not a number from 0", r.PerSecond)
	case r.Burst < 0:
		return fmt.Errorf("rate: burst %d is below 0", r.Burst)
	case r.Burst > 0 && r.PerSecond == 0:
		return errors.New("rate: a burst without a number a second")
	}
	return nil
}

// burst is how many requests may begin at once.
func (r Rate) burst() int {
	if r.Burst > 0 {
		return r.Burst
	}
	return int(min(max(math.Ceil(r.PerSecond), 1), math.MaxInt32))
}
