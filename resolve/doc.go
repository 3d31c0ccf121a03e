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
// The resolvers are in packages of their own: static, file, dns, k8s, linkerd,
// and kit for go-kit's service discovery. Package resolvetest proves that a
// resolver, yours as well, keeps these promises.
//
// # Outages
//
// What a source says decides, and nothing else does. Of itself that means:
//
//   - A source that is lost, refuses, fails, falls silent, or says what cannot
//     be read, has said nothing: the last set stays in force, for ever.
//   - What it says when it is back replaces the last set, whole and at once:
//     others, fewer, none that were there before, Empty, DoesNotExist.
//   - Only [ErrUnresolvable] is an end. So is a panic, which does not end the process
//     where a wrapper ranges over the resolver in a goroutine of its own.
//   - A source that answers and breaks off again and again is asked about six
//     times a minute at the most, see [Reconnect].
//
// A program that is to outlive its control plane puts [ServeStale] around it,
// and that means:
//
//   - An answer without endpoints, be it Empty or DoesNotExist, that is the
//     first one after an outage is believed only after Grace, 30 s; so is one
//     that lacks more than MaxLoss of the endpoints, where that is set.
//   - A set that is not confirmed is let go after MaxAge, where that is set. Its
//     age can be seen.
//   - A target that nobody asked for is not forgotten, but for a day: asked for
//     again in an outage, it has the set that it had.
//
// What was lost, doubled or reordered on the way is made up for when a source
// is next asked for all there is: at the stream limits of package linkerd, after
// the TTL in package dns, when package file looks again.
//
// # Wrappers
//
// Resolvers stand on each other. A wrapper of a nil resolver panics.
//
//	Registry       "dns://web:80", "file://web:80": a resolver for each scheme
//	Dedupe         only what changes something
//	Subset, Zone   some of the endpoints: a share for each caller; those nearby
//	ServeStale   what was good outlives outages; an empty answer after one is held back
//	Fallback       another resolver, for names that the first does not know
//	Merge          the endpoints of several, as one set
//	Reconnect      asks again when a stream ends
//
// Each passes on that a source was lost, and that it is back: its first answer
// after an error is an update, even if it changes nothing. ServeStale tells by
// that how old a set is. It may stand below Fallback and Merge as well, around
// each of their resolvers, and judges each by itself then.
package resolve
