package resolve_test

import (
	"testing"
	"time"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
	"github.com/gotower/gotower/resolve/static"
)

func TestSubsetAndZoneConform(t *testing.T) {
	all := resolve.SubsetPolicy{Peer: 1, Peers: 2, Size: 20}
	labelled := func(e resolve.Endpoint) resolve.Endpoint {
		e.Labels = map[string]string{"zone": "b"}
		return e
	}
	for name, wrap := range map[string]func(resolve.Resolver) resolve.Resolver{
		"subset":  func(r resolve.Resolver) resolve.Resolver { return resolve.Subset(r, all) },
		"no zone": func(r resolve.Resolver) resolve.Resolver { return resolve.Zone(r, "", resolve.ZonePolicy{}) },
		"zone": func(r resolve.Resolver) resolve.Resolver {
			return resolve.Zone(r, "a", resolve.ZonePolicy{StabilizationWindow: time.Millisecond})
		},
		"both": func(r resolve.Resolver) resolve.Resolver {
			return resolve.Subset(resolve.Zone(r, "a", resolve.ZonePolicy{}), all)
		},
	} {
		t.Run(name+" of static", func(t *testing.T) {
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
		t.Run(name+" of a script", func(t *testing.T) {
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
}
