package resolve_test

import (
	"testing"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
	"github.com/gotower/gotower/resolve/static"
)

func TestSubsetConforms(t *testing.T) {
	all := resolve.SubsetPolicy{Peer: 1, Peers: 2, Size: 20}
	labelled := func(e resolve.Endpoint) resolve.Endpoint {
		e.Labels = map[string]string{"zone": "b"}
		return e
	}
	wrap := func(r resolve.Resolver) resolve.Resolver { return resolve.Subset(r, all) }
	t.Run("of static", func(t *testing.T) {
		resolvetest.Run(t, resolvetest.Subject{
			New: func(testing.TB) (resolve.Resolver, resolvetest.Source) {
				r := static.New(nil)
				return wrap(r), resolvetest.Source{
					Set:          r.Set,
					Empty:        func(target string) { r.Set(target) },
					DoesNotExist: r.Delete,
				}
			},
			Relabel: labelled,
		})
	})
	t.Run("of a script", func(t *testing.T) {
		resolvetest.Run(t, resolvetest.Subject{
			New: func(testing.TB) (resolve.Resolver, resolvetest.Source) {
				var s script
				return wrap(s.lasting()), s.source()
			},
			Relabel: labelled,
			Rekey:   func(e resolve.Endpoint) resolve.Endpoint { e.Protocol = resolve.H2; return e },
		})
	})
}
