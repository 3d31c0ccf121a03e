package layer_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// Maintenance returns a layer that rejects requests while closed is true. For every other
// request it counts in inFlight until the response ends.
func Maintenance[Req, Rsp any](closed *atomic.Bool, inFlight *atomic.Int64) layer.Layer[Req, Rsp] {
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		return &maintenance[Req, Rsp]{Service: next, closed: closed, inFlight: inFlight, complete: layer.AtEnd[Rsp]()}
	}
}

type maintenance[Req, Rsp any] struct {
	layer.Service[Req, Rsp] // Ready is inherited

	closed   *atomic.Bool
	inFlight *atomic.Int64
	complete layer.Completion[Rsp]
}

var errMaintenance = errors.New("maintenance until 14:00")

func (m *maintenance[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if m.closed.Load() {
		var none Rsp
		return none, &layer.Error{Layer: "maintenance", Kind: layer.ErrNotReady, Err: errMaintenance}
	}
	m.inFlight.Add(1)
	served := false
	defer func() {
		if !served { // also after a panic of an inner service
			m.inFlight.Add(-1)
		}
	}()
	rsp, err := m.Service.Call(ctx, req)
	if err != nil {
		return rsp, err
	}
	served = true
	return m.complete(ctx, rsp, ending{m.inFlight}), nil
}

// Describe adds the state of the layer to the output of layer.Describe.
func (m *maintenance[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "maintenance", State: layer.State{
		{Key: "closed", Value: m.closed.Load()}, {Key: "in_flight", Value: m.inFlight.Load()},
	}}
}

// Next returns the service that the layer wraps, for layer.Describe.
func (m *maintenance[Req, Rsp]) Next() layer.Service[Req, Rsp] { return m.Service }

// ending is notified of the end of one response.
type ending struct{ inFlight *atomic.Int64 }

func (ending) Data(int)    {}
func (e ending) End(error) { e.inFlight.Add(-1) }

// A layer of your own in a stack.
func Example_writeALayer() {
	var closed atomic.Bool
	var inFlight atomic.Int64
	svc := layer.NewStack[string, string]().
		With("maintenance", Maintenance[string, string](&closed, &inFlight)).
		Limit(10).
		Service(layer.Func[string, string](func(_ context.Context, name string) (string, error) { return "hello " + name, nil }))

	fmt.Println(svc.Call(context.Background(), "gopher"))
	closed.Store(true)
	_, err := svc.Call(context.Background(), "gopher")
	fmt.Println(err, "- rejected:", errors.Is(err, layer.ErrNotReady))
	fmt.Println(layer.Describe(svc))
	// Output:
	// hello gopher <nil>
	// maintenance: not ready: maintenance until 14:00 - rejected: true
	// maintenance closed=true in_flight=0
	// limit      in_flight=0 max=10
	// layer.Func
}

// The whole test of the layer.
func TestMaintenanceConforms(t *testing.T) {
	layertest.Run(t, layertest.LayerOf[*http.Request, *http.Response]{
		Layer: Maintenance[*http.Request, *http.Response](new(atomic.Bool), new(atomic.Int64)),
		Request: func(i int) *http.Request {
			req, _ := http.NewRequest(http.MethodPost, fmt.Sprintf("http://web.example/%d", i), http.NoBody)
			return req
		},
		Response: func(i int) *http.Response {
			return &http.Response{StatusCode: 200 + i, Header: http.Header{}, Body: http.NoBody}
		},
	})
}
