package kit

import (
	"testing"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
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
