package profiles_test

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// tallies are what routes have counted, for tests with many goroutines.
type tallies struct {
	mu   sync.Mutex
	made []*tally
}

// tally is that of the requests of a route, or of its tries.
type tally struct {
	what                string
	requests, responses sum
	inFlight            gauge
}

func (a *tallies) instruments(route profiles.Route) (requests, tries layer.Instruments) {
	return a.add(route.Name + ": requests"), a.add(route.Name + ": tries")
}

func (a *tallies) add(what string) layer.Instruments {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := &tally{what: what}
	a.made = append(a.made, one)
	return layer.Instruments{Requests: &one.requests, Responses: &one.responses, InFlight: &one.inFlight}
}

// of is how many there were in all.
func (a *tallies) of(what string) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := int64(0)
	for _, one := range a.made {
		if strings.HasSuffix(one.what, what) {
			n += one.requests.n.Load()
		}
	}
	return n
}

// balanced requires that everything that began has ended once.
func (a *tallies) balanced(t assert.TestingT) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.made {
		assert.Equal(t, one.requests.n.Load(), one.responses.n.Load(), one.what)
		assert.Zero(t, one.inFlight.n.Load(), one.what)
	}
}

// sum is a counter that ignores labels.
type sum struct{ n atomic.Int64 }

func (s *sum) With(...string) metrics.Counter { return s }
func (s *sum) Add(delta float64)              { s.n.Add(int64(delta)) }

type gauge struct{ n atomic.Int64 }

func (g *gauge) With(...string) metrics.Gauge { return g }
func (g *gauge) Set(value float64)            { g.n.Store(int64(value)) }
func (g *gauge) Add(delta float64)            { g.n.Add(int64(delta)) }
