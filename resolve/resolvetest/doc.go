// Package resolvetest tests that a resolver keeps the contract of [resolve.Resolver].
//
//	Run ──▶ Checks ── range over ──▶ your Resolver ── reads ──▶ your source
//	           │                                                     ▲
//	           └────────────── control it, by Source ────────────────┘
//
// A [Subject] makes the resolver and a [Source], which controls the source behind it. A
// check that needs a nil function of the Source is skipped.
//
//	func TestResolver(t *testing.T) {
//		resolvetest.Run(t, resolvetest.Subject{New: func(t testing.TB) (resolve.Resolver, resolvetest.Source) {
//			zone := startZone(t)
//			return New(zone.Addr()), resolvetest.Source{Set: zone.Set, Empty: zone.Empty}
//		}})
//	}
//
// The suite looks for leaked goroutines: do not run it in parallel with other tests.
package resolvetest
