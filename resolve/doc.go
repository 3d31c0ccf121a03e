// Package resolve resolves a name to a stream of updates about its endpoints.
//
//	                      Resolve(ctx, "web.default:80")
//	source ──messages──▶ Resolver ──Update, error──▶ Set ──Diff──▶ your state
//	                        ▲                                     per endpoint
//	               Reconnect: when a stream
//	               ends, back off and ask again
//
// A [Resolver] is a function that returns an iterator:
//
//	var known resolve.Set
//	for update, err := range r.Resolve(ctx, "web.default:80") {
//		if err != nil {
//			log.Print(err) // the known endpoints stay
//			continue
//		}
//		diff := known.Apply(update)
//		// open the services of diff.Added, close those of diff.Removed
//	}
//
// Updates may be redundant and reordered. A [Set] returns the actual changes. An
// [Endpoint] is the same as long as its [ID] stays the same, so that its connections
// and statistics can be kept. When a stream is lost, the last set stays until the first
// message after a reconnect replaces it. [Reconnect] implements that for any resolver.
//
// The resolvers are in separate packages: static, file, dns, k8s, linkerd, and kit for go-kit's
// service discovery. Package resolvetest tests whether a resolver keeps these rules.
//
// # Outages
//
//   - If a source is lost, fails, is silent or unreadable, the last set stays without a time limit.
//   - The first answer after that replaces the whole set, also if it is Empty or DoesNotExist.
//   - Only [ErrUnresolvable] and a panic end a stream. The panic does not end the process if a wrapper
//     runs the resolver on its own goroutine.
//   - A source that alternates between answers and failures is asked at most about six times a
//     minute, see [Reconnect].
//
// A program that must work without its control plane adds [ServeStale]:
//
//   - If the first answer after an outage has no endpoints, it takes effect only after Grace, 30 s.
//   - If MaxAge is set, a set that was not confirmed for that time is dropped.
//
// Lost, duplicate or reordered updates are corrected when the source sends the whole
// set again. Package linkerd requests it at its stream limits, and package dns after
// the TTL. Package file reads it when the file changes.
//
// # Wrappers
//
// Resolvers can be combined. A wrapper panics if a resolver is nil.
//
//	ServeStale     keeps endpoints during outages and delays an empty answer after one
//	Fallback       uses another resolver for names that the first does not know
//	Merge          combines the endpoints of several resolvers in one set
//	Reconnect      resolves again when a stream ends
//
// Each wrapper forwards errors, and yields the first answer after an error even if it
// changes nothing. ServeStale uses that to compute the age of a set. It may also wrap
// each resolver of a Fallback or Merge.
package resolve
