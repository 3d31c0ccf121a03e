package static

import (
	"fmt"
	"testing"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
)

func TestConforms(t *testing.T) {
	resolvetest.Run(t, resolvetest.Subject{
		New: func(testing.TB) (resolve.Resolver, resolvetest.Source) {
			r := New(nil)
			return r, resolvetest.Source{
				Set:          r.Set,
				Empty:        func(target string) { r.Set(target) },
				DoesNotExist: r.Delete,
			}
		},
		Endpoint: func(n int) resolve.Endpoint {
			e := endpoints(t, fmt.Sprintf("10.0.0.%d:80", n))[0]
			e.Protocol, e.Weight, e.Labels = resolve.H2, uint32(n), map[string]string{"n": fmt.Sprint(n)}
			return e
		},
		Relabel: func(e resolve.Endpoint) resolve.Endpoint {
			e.Labels, e.Weight = map[string]string{"n": "other"}, 99
			return e
		},
		Rekey: func(e resolve.Endpoint) resolve.Endpoint {
			e.Identity, e.ServerName = "web.default", "web.default"
			return e
		},
	})
}
