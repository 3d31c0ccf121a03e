package balance

import (
	"context"
	"io"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// answer has an empty body.
type answer struct{ Body io.ReadCloser }

type answering = discover.Endpoint[int, *answer]

// alone returns a balancer of one endpoint that responds at once.
func alone(t *testing.T, opts ...Option[*answer]) (*Balancer[int, *answer], *answering) {
	t.Helper()
	b := New(t.Context(), Config{Target: "web"}, func(func(discover.Change[int, *answer]) bool) {}, opts...)
	e := &answering{
		Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort("10.0.0.1:80")}},
		Service:  layer.Func[int, *answer](func(context.Context, int) (*answer, error) { return &answer{}, nil }),
	}
	b.apply(discover.Change[int, *answer]{State: resolve.StateExists, Added: []*answering{e}})
	return b, e
}

// requireAtRest requires that the endpoint got that many requests and has none in flight.
func requireAtRest(t *testing.T, b *Balancer[int, *answer], picks int) {
	t.Helper()
	for _, n := range b.nodes {
		require.EqualValues(t, 0, n.inFlight(), b.policy.Load().Sample)
		require.EqualValues(t, 0, n.status.streams(), b.policy.Load().Sample)
		require.EqualValues(t, picks, n.picks(), b.policy.Load().Sample)
	}
}

var samples = []Sample{SampleFirstByte, SampleHeaders, SampleEnd}

// A response without a body ends within the completion.
func TestExchangeClassifierPanics(t *testing.T) {
	for _, sample := range samples {
		b, _ := alone(t, WithPolicy[*answer](Policy{Sample: sample}), WithClassifier(func(o layer.Outcome[*answer]) layer.Class {
			if o.Ended {
				panic("unforeseen")
			}
			return layer.Success
		}))
		for n := range 3 {
			require.PanicsWithValue(t, "unforeseen", func() { _, _ = b.Call(t.Context(), 1) })
			requireAtRest(t, b, n+1)
		}
	}
}

// After the completion panicked, an End from another goroutine has no effect.
func TestExchangeEndAfterPanic(t *testing.T) {
	for _, sample := range samples {
		var o layer.Observer
		b, _ := alone(t, WithPolicy[*answer](Policy{Sample: sample}),
			WithCompletion(func(_ context.Context, _ *answer, observer layer.Observer) *answer {
				o = observer
				panic("unforeseen")
			}))
		require.PanicsWithValue(t, "unforeseen", func() { _, _ = b.Call(t.Context(), 1) })
		o.Data(1)
		requireAtRest(t, b, 1)
		o.End(nil)
		o.Data(1)
		requireAtRest(t, b, 1)
	}
}
