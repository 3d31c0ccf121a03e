package profiles

import (
	"context"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

func BenchmarkLocation(b *testing.B) {
	r := Redirect{Scheme: "https", OldPrefix: "/v1", NewPrefix: "/v2"}
	b.ReportAllocs()
	for b.Loop() {
		from, _ := locationOf("http", "web.example.com:8080", "/v1/books/7", "page=2")
		_ = r.apply(from).String()
	}
}

// BenchmarkFaults measures a request that no fault selects.
func BenchmarkFaults(b *testing.B) {
	for name, f := range map[string]Fault{
		"not selected": {Status: 503, TTL: time.Hour},
		"ended":        {Fraction: 1, Status: 503, TTL: 1},
	} {
		b.Run(name, func(b *testing.B) {
			a := &routeStack[int, int]{
				Router: &Router[int, int]{access: blind{}}, route: Route{Faults: []Fault{f}},
			}
			a.protocol = integers{}
			svc := a.addFaults(layer.NewStack[int, int]()).Service(layer.Func[int, int](func(context.Context, int) (int, error) { return 0, nil }))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = svc.Call(b.Context(), 1)
			}
		})
	}
}

// blind is an Accessor without messages.
type blind struct{ layer.Accessor[int, int] }

// integers is a Protocol of numbers.
type integers struct {
	layer.BaseProtocol[int, int]
	layer.Editor[int, int]
}
