package balance_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

func TestPolicyValidate(t *testing.T) {
	require.NoError(t, balance.Policy{}.Validate())
	require.NoError(t, balance.Policy{
		Decay: time.Hour, SlowStart: time.Minute, Sample: balance.SampleEnd, Penalty: -1,
	}.Validate())
	err := balance.Policy{
		Decay: -1, SlowStart: -1, Sample: 9,
		OutlierDetection: balance.OutlierDetection{MinReady: 2},
	}.Validate()
	for _, want := range []string{
		"balance: policy: Decay is -1ns", "balance: policy: SlowStart is -1ns, want 0 for none, or up to 24h0m0s",
		"balance: policy: Sample is 9, want SampleFirstByte, SampleHeaders or SampleEnd", "MinReady is 2",
	} {
		assert.ErrorContains(t, err, want)
	}
}

func TestPolicyStrings(t *testing.T) {
	for want, p := range map[string]balance.Picker{
		"cheapest of up to 24 in an aperture": {}, "cheapest of 2": balance.PowerOfChoices(2), "cheapest of 1": balance.PowerOfChoices(-3),
		"cheapest of 24": balance.PowerOfChoices(1000), "round robin": balance.RoundRobin(),
		"random": balance.Random(),
	} {
		assert.Equal(t, want, p.String())
	}
	for want, c := range map[string]balance.Cost{
		"ewma": balance.EWMA, "least_request": balance.LeastRequest,
	} {
		assert.Equal(t, want, c.String())
	}
}

// Changes of weights and zones keep the node.
func TestWeightsAndZonesChange(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Zone: "a"})), servers(2)
		for _, s := range ss {
			s.after(func() time.Duration { return 10 * time.Millisecond })
		}
		p.add(ss...)
		far := func() (far []bool) {
			for _, s := range p.Snapshot() {
				far = append(far, s.OtherZone)
			}
			return far
		}
		require.Equal(t, []bool{true, true}, far(), "without the label nothing is near")
		p.load(t, 10, time.Second, ss, patient)

		p.apply(change{State: resolve.StateExists, Changed: []*endpoint{ss[1].labelled(map[string]string{"zone": "a"})}})
		require.Equal(t, []bool{true, false}, far())
		require.Equal(t, []float64{0, 1}, p.load(t, 100, time.Second, ss, patient))

		heavy := ss[0].labelled(map[string]string{"zone": "a"})
		heavy.Weight = 30_000
		p.apply(change{State: resolve.StateExists, Changed: []*endpoint{heavy}})
		require.Equal(t, []bool{false, false}, far())
		require.InDelta(t, 0.75, p.load(t, 3000, time.Second, ss, patient)[0], 0.06)
		require.EqualValues(t, 3110, p.Describe().State.Get("picks"))
	})
}

func TestPickers(t *testing.T) {
	for name, p := range map[string]balance.Policy{
		"round robin": {Picker: balance.RoundRobin()}, "random": {Picker: balance.Random()}, "least request": {Cost: balance.LeastRequest},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, balance.WithPolicy[*response](p)), servers(4)
				for i, s := range ss {
					s.after(func() time.Duration { return time.Duration(1+i) * time.Millisecond })
				}
				p.add(ss...)
				for _, share := range p.load(t, 4000, 100*time.Millisecond, ss, patient) {
					require.InDelta(t, 0.25, share, 0.05)
				}
				tries := new(layer.Attempts)
				for i := range 4 {
					require.NoError(t, p.send(layer.WithAttempts(t.Context(), tries)))
					require.Equal(t, i+1, tries.Len(), "it was there before")
				}
			})
		})
	}
}

// ledger is a gauge and a counter of any labels.
type ledger struct {
	values *sync.Map
	key    string
}

func (l ledger) entry(labels []string) ledger {
	return ledger{l.values, l.key + strings.Join(labels, "=")}
}
func (l ledger) Set(v float64) { l.values.Store(l.key, v) }

func (l ledger) Add(v float64) {
	old, _ := l.values.LoadOrStore(l.key, 0.0)
	l.values.Store(l.key, old.(float64)+v)
}

type (
	gauges   struct{ ledger }
	counters struct{ ledger }
)

func (g gauges) With(labels ...string) metrics.Gauge     { return gauges{g.entry(labels)} }
func (c counters) With(labels ...string) metrics.Counter { return counters{c.entry(labels)} }

func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		values := new(sync.Map)
		named := func(name string) ledger { return ledger{values, name + " "} }
		p, ss := newPool(t, balance.WithMetrics[*response](balance.Instruments{
			Endpoints: gauges{named("endpoints")}, Updates: counters{named("updates")}, Rejections: counters{named("refusals")},
		})), servers(4)
		require.ErrorIs(t, p.send(t.Context()), layer.ErrNotReady)
		ss[2].open(false)
		p.add(ss...)
		p.remove(ss[0])
		p.apply(change{State: resolve.StateExists, Reset: true})
		p.apply(change{State: resolve.StateExists, Reset: true, Changed: []*endpoint{ss[1].labelled(map[string]string{"zone": "b"})}})
		all := make(map[any]any)
		values.Range(func(k, v any) bool { all[k] = v; return true })
		require.Equal(t, map[any]any{
			"refusals ": 1.0, "updates op=Add": 4.0, "updates op=Remove": 1.0, "updates op=Reset": 1.0,
			"endpoints endpoint_state=ready": 2.0, "endpoints endpoint_state=pending": 1.0,
		}, all)
		ss[2].open(true)
		synctest.Wait()
		ready, _ := values.Load("endpoints endpoint_state=ready")
		require.InDelta(t, 3, ready, 0)
		p.finish()
		ready, _ = values.Load("endpoints endpoint_state=ready")
		require.InDelta(t, 0, ready, 0, "and nothing is left when it ends")
	})
}

// An endpoint with a new ID counts as added and as removed.
func TestMetricsReplaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		values := new(sync.Map)
		p, ss := newPool(t, balance.WithMetrics[*response](balance.Instruments{Updates: counters{ledger{values, ""}}})), servers(4)
		p.add(ss[:3]...)
		renamed := ss[0].endpoint()
		renamed.ID.ServerName = "another"
		p.apply(change{
			State: resolve.StateExists, Added: []*endpoint{renamed, ss[3].endpoint()},
			Removed: []*endpoint{ss[0].endpoint(), ss[1].endpoint()},
		})
		add, _ := values.Load("op=Add")
		remove, _ := values.Load("op=Remove")
		require.Equal(t, []any{5.0, 2.0}, []any{add, remove})
	})
}
