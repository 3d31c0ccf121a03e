package balance_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
)

// knowing is a server with a classifier.
type knowing struct {
	*server
	classify layer.Classifier[*response]
}

func (k knowing) Classifier() layer.Classifier[*response] { return k.classify }

// The classifier of the endpoints applies unless the option sets another one.
func TestClassifier(t *testing.T) {
	failure := func(layer.Outcome[*response]) layer.Class { return layer.Failure }
	success := func(layer.Outcome[*response]) layer.Class { return layer.Success }
	for name, tt := range map[string]struct {
		endpoints []layer.Classifier[*response] // nil: the service has no classifier
		opts      []option
		errs      bool // the servers return errors
		failing   bool
	}{
		"none, a response":             {endpoints: []layer.Classifier[*response]{nil}},
		"none, an error":               {endpoints: []layer.Classifier[*response]{nil}, errs: true, failing: true},
		"that of the service":          {endpoints: []layer.Classifier[*response]{failure}, failing: true},
		"of the first that has one":    {endpoints: []layer.Classifier[*response]{nil, failure, success}, failing: true},
		"the option, in place of none": {endpoints: []layer.Classifier[*response]{nil}, opts: []option{balance.WithClassifier(failure)}, failing: true},
		"the option, in place of another": {
			endpoints: []layer.Classifier[*response]{failure}, opts: []option{balance.WithClassifier(success)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPool(t, append(tt.opts, balance.WithPolicy[*response](balance.Policy{Picker: balance.RoundRobin()}))...)
				ss := servers(len(tt.endpoints))
				for i, classify := range tt.endpoints { // each one a change of its own
					e := ss[i].endpoint()
					if e.Service = ss[i]; classify != nil {
						e.Service = layer.Limit[string, *response](10)(knowing{ss[i], classify})
					}
					if tt.errs {
						ss[i].fail(always)
					}
					p.apply(change{Added: []*discover.Endpoint[string, *response]{e}})
				}
				p.sends(t, 10*len(ss))
				for _, e := range p.Snapshot() {
					assert.Equal(t, tt.failing, e.Latency > 100*time.Millisecond, "the penalty is 600 ms")
				}
			})
		})
	}
}
