// Package resolvetest tests that a resolver keeps the contract of [resolve.Resolver].
//
//	Run ──▶ Checks ── range over ──▶ your Resolver ── reads ──▶ your source
//	           │                                                     ▲
//	           └────────────── control it, by Source ────────────────┘
//
// A [Subject] makes the resolver and a [Source], which controls the source behind it. A check is skipped if it
// needs a function that is nil in the Source.
//
//	func TestResolver(t *testing.T) {
//		resolvetest.Run(t, resolvetest.Subject{New: func(t testing.TB) (resolve.Resolver, resolvetest.Source) {
//			zone := startZone(t)
//			return New(zone.Addr()), resolvetest.Source{Set: zone.Set, Empty: zone.Empty}
//		}})
//	}
//
// The suite looks for leaked goroutines, so you must not run it in parallel with other tests.
package resolvetest
