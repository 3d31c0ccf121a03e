// Package resolve turns a name into a stream of updates about its endpoints.
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
// Updates may be redundant and reordered; a [Set] returns the actual changes. An
// [Endpoint] is the same as long as its [ID] stays, so its connections and statistics
// stay too. After a lost stream the last set stays until the first message
// after a reconnect, which replaces it. [Reconnect] adds that to any resolver.
//
// The resolvers are in separate packages: static, file, dns, k8s, linkerd, and kit for
// go-kit's service discovery. Package resolvetest tests that a resolver keeps these
// promises.
//
// # Outages
//
//   - A source that is lost, fails, is silent or unreadable changes nothing: the last
//     set stays without a time limit.
//   - Its first answer after that replaces the last set as a whole, also if it is
//     Empty or DoesNotExist.
//   - Only [ErrUnresolvable] ends a stream. A panic does too, and does not end the
//     process where a wrapper runs the resolver on its own goroutine.
//   - A source that answers and fails again and again is asked about six times a
//     minute at most, see [Reconnect].
//
// A program that must outlive its control plane adds [ServeStale]:
//
//   - The first answer after an outage takes effect only after Grace, 30 s, if it has
//     no endpoints.
//   - A set that is not confirmed for MaxAge is dropped, if MaxAge is set.
//
// Lost, duplicate or reordered updates are corrected when the source is next asked for
// the whole set: at the stream limits of package linkerd, after the TTL in package dns,
// and when package file reads the file again.
//
// # Wrappers
//
// Resolvers can be combined. A wrapper of a nil resolver panics.
//
//	Dedupe         drops updates without a change
//	Subset         a share of the endpoints for each client
//	ServeStale     keeps endpoints through outages; delays an empty answer after one
//	Fallback       another resolver, for names that the first does not know
//	Merge          the endpoints of several resolvers as one set
//	Reconnect      asks again when a stream ends
//
// Each forwards the loss of a source and its return: the first answer after an error is
// an update even if it changes nothing. ServeStale uses that for the age of a set. It
// may also stand below Fallback and Merge, around each of their resolvers.
package resolve
