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
// Updates may be redundant and reordered. A [Set] returns the actual changes. An [Endpoint] is the same
// as long as its [ID] stays the same, so you can keep its connections and statistics. When a stream is
// lost, the last set stays until the first message after a reconnect replaces it. [Reconnect] implements
// that for any resolver.
//
// The resolvers are in separate packages: static, file, dns, k8s, linkerd, and kit for go-kit's service
// discovery. The module's guides folder explains how to write one for a source of your own, and
// package resolvetest tests whether it keeps these rules.
//
// # Outages
//
//   - If a source is lost, fails, is silent or unreadable, the last set stays without a time limit.
//   - The first answer after that replaces the whole set, also if it is Empty or DoesNotExist. Package
//     dns waits for a second answer that is.
//   - Only [ErrUnresolvable] and a panic end a stream. The panic does not end the process if a wrapper
//     runs the resolver on its own goroutine.
//   - A source that alternates between answers and failures is asked at most about six times a
//     minute, see [Reconnect].
//
// A program that must work without its control plane adds [ServeStale]:
//
//   - If the first answer after an outage contains no endpoints, it takes effect only after Grace, 30 s.
//   - If MaxAge is set, a set that was not confirmed for that time is dropped.
//
// Lost, duplicate or reordered updates are corrected when the source sends the whole set again. Package
// linkerd requests it at its stream limits, and package dns after the TTL. Package file reads it when
// the file changes.
//
// # Priorities and localities
//
// Package balance prefers endpoints by [Endpoint].Priority and Locality. They are set by these packages:
//
//	dns       the SRV records' priority
//	k8s       the zone as locality; with k8s.WithZone, topology hints as priority
//	linkerd   the zone as locality
//	file      the fields priority, locality and locality_weight
//
// # Wrappers
//
// Resolvers can be combined. A wrapper panics if a resolver is nil.
//
//	ServeStale     keeps endpoints during outages and delays an empty answer after one
//	Fallback       uses another resolver for names that the first does not know
//	Merge          combines the endpoints of several resolvers in one set
//	WithPriority   sets the priority of endpoints, for example of a backup in a Merge
//	Reconnect      resolves again when a stream ends
//
// Each wrapper forwards errors, and yields the first answer after an error even if it changes nothing.
// From that, ServeStale computes a set's age. It may also wrap each resolver in a Fallback or Merge.
package resolve
