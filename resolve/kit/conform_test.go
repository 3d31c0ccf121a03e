package kit

import (
	"testing"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
	"github.com/gotower/gotower/resolve/static"
)

func TestConforms(t *testing.T) {
	resolvetest.Run(t, resolvetest.Subject{
		New: func(testing.TB) (resolve.Resolver, resolvetest.Source) {
			reg := newRegistry()
			return New(reg.make), resolvetest.Source{
				Set:       reg.set,
				Empty:     func(target string) { reg.set(target) },
				Interrupt: reg.interrupt,
				Reject:    func(target string) { reg.reject[target] = true },
			}
		},
	})
}

// A resolver as an Instancer as a resolver.
func TestInstancerConforms(t *testing.T) {
	resolvetest.Run(t, resolvetest.Subject{
		New: func(testing.TB) (resolve.Resolver, resolvetest.Source) {
			r := static.New(nil)
			return New(instancers(r)), resolvetest.Source{
				Set:   r.Set,
				Empty: func(target string) { r.Set(target) },
			}
		},
	})
}
