package simulation

import (
	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// variant is the real balancer with another policy. To try one, add it to
// variants.
type variant struct {
	name   string
	policy balance.Policy
}

const (
	ourDefault = "gotower"
	ourScan    = "gotower, scan of all"
)

// variants are compared in the order in which they stand in the tables. The
// first two are those that the test looks at.
func variants() []variant {
	return []variant{
		{ourDefault, balance.Policy{}},
		{ourScan, balance.Policy{Picker: balance.FullScan()}},
		{"gotower, 2 choices", balance.Policy{Picker: balance.PowerOfChoices(2)}},
		{"gotower, 5 choices", balance.Policy{Picker: balance.PowerOfChoices(5)}},
	}
}

func (v variant) options(sc *scenario, seed uint64) []option {
	if sc.zone != nil {
		v.policy.Zone = near
	}
	return []option{
		balance.WithClassifier[response](layer.DefaultClassifier[response]),
		balance.WithRand[response](source(seed).Uint64),
		balance.WithPolicy[response](v.policy),
	}
}
