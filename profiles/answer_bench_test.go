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
		from, _ := placeOf("http", "web.example.com:8080", "/v1/books/7", "page=2")
		_ = r.to(from).String()
	}
}

// BenchmarkFaults is what a request pays that meets none of them.
func BenchmarkFaults(b *testing.B) {
	for name, f := range map[string]Fault{
		"not its share": {Status: 503, TTL: time.Hour},
		"over":          {Fraction: 1, Status: 503, TTL: 1},
	} {
		b.Run(name, func(b *testing.B) {
			a := &acting[int, int]{
				Router: &Router[int, int]{access: blind{}}, route: Route{Faults: []Fault{f}}, lives: []time.Duration{f.TTL},
			}
			a.standard = &standard[int, int]{}
			svc := a.faults(layer.NewStack[int, int]()).Service(layer.Func[int, int](func(context.Context, int) (int, error) { return 0, nil }))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = svc.Call(b.Context(), 1)
			}
		})
	}
}

// blind is an Access to nothing.
type blind struct{ layer.Accessor[int, int] }

func (blind) Complete(_ context.Context, rsp int, _ layer.Observer) int { return rsp }
