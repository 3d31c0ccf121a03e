// Package resolve turns a name into a stream of news about the endpoints that
// serve it.
//
//	                      Resolve(ctx, "web.default:80")
//	source ──messages──▶ Resolver ──Update, error──▶ Set ──Diff──▶ what you keep
//	                        ▲                                     per endpoint
//	               Reconnect: when a stream
//	               ends, back off and ask again
//
// A [Resolver] is a function that returns an iterator:
//
//	var known resolve.Set
//	for update, err := range r.Resolve(ctx, "web.default:80") {
//		if err != nil {
//			log.Print(err) // news: what is known stays in force
//			continue
//		}
//		diff := known.Apply(update)
//		// open what diff.Added says, let go of what diff.Removed says
//	}
//
// Updates may be redundant and reordered; a [Set] makes of them what really
// changed. An [Endpoint] is one and the same for as long as its [ID] stays, so
// whatever is kept for it (connections, statistics) stays too.
//
// A source is lost and found again without a gap: the last set stays in force
// until the first message after a reconnect, which replaces it whole.
// [Reconnect] gives that behaviour to any resolver whose streams may end.
//
// The resolvers are in packages of their own: static, file, dns, linkerd, and
// kit for go-kit's service discovery. Package resolvetest proves that a
// resolver, yours as well, keeps these promises.
//
// # Wrappers
//
// Resolvers stand on each other:
//
//	Registry       "dns://web:80", "file://web:80": a resolver for each scheme
//	KeepLastGood   an answer that is empty after an outage is held back for a while
//	Fallback       another resolver, for names that the first does not know
//	Merge          the endpoints of several, as one set
//	Subset, Zone   some of the endpoints: a share for each caller; those nearby
//	Dedupe         only what changes something
//	Reconnect      asks again when a stream ends
package resolve
