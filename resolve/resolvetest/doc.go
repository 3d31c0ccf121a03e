// Package resolvetest proves that a resolver keeps the promises of
// [resolve.Resolver]: yours, as it does ours.
//
//	Run ──▶ Checks ── ranges over ──▶ your Resolver ── reads ──▶ your source
//	           │                                                     ▲
//	           └───────────── scripts, through Source ───────────────┘
//
// A [Subject] makes the resolver and says, as a [Source], how to script what is
// behind it. What a source cannot do stays nil, and the checks that need it are
// skipped and say so. In a test of yours:
//
//	func TestResolver(t *testing.T) {
//		resolvetest.Run(t, resolvetest.Subject{New: func(t testing.TB) (resolve.Resolver, resolvetest.Source) {
//			zone := startZone(t)
//			return New(zone.Addr()), resolvetest.Source{Set: zone.Set, Empty: zone.Empty}
//		}})
//	}
//
// The suite looks for goroutines that are left behind, so nothing else may
// start any while it runs: do not run it in parallel with other tests.
package resolvetest
