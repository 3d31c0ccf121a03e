package resolvetest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gotower/gotower/resolve"
)

// Subject is a resolver to be tested.
type Subject struct {
	// New makes a resolver, and the source behind it with no target set. It is
	// called for each check; what has to be closed is closed by t.Cleanup.
	New func(t testing.TB) (resolve.Resolver, Source)

	// Targets are two names that the resolver takes. The default is
	// "web.default.svc.cluster.local:80" and "books.default.svc.cluster.local:80".
	Targets [2]string

	// Endpoint is the n-th endpoint to test with, with all that the resolver
	// conveys; n is 0 to 9. The resolver must yield it as it is. The default
	// is 10.0.0.n, port 80, and nothing else.
	Endpoint func(n int) resolve.Endpoint

	// Relabel returns e with other labels or another weight, and Rekey returns
	// it with another ID at the same address. Nil says that the resolver
	// conveys no such thing.
	Relabel func(e resolve.Endpoint) resolve.Endpoint
	Rekey   func(e resolve.Endpoint) resolve.Endpoint

	// Patience is how long a check waits for what must happen. A resolver that
	// passes never makes it wait as long. The default is 30 s, for slow machines.
	Patience time.Duration
}

// Source scripts what is behind a resolver. Its functions return at once: they
// do not wait for any consumer, one of which may be stalled. All but Set may be
// nil.
type Source struct {
	// Set makes endpoints, at least one, all that the target has.
	Set func(target string, endpoints ...resolve.Endpoint)

	// Empty makes the target exist without endpoints.
	Empty func(target string)

	// DoesNotExist makes the target not exist.
	DoesNotExist func(target string)

	// Send sends one message, as it is, to whoever resolves the target now. It
	// is for sources that speak in increments.
	Send func(target string, u resolve.Update)

	// Interrupt breaks the streams of the target, calls meanwhile, and only
	// then lets streams work again. meanwhile uses the functions above.
	Interrupt func(target string, meanwhile func())

	// Reject makes the target one that is not a name to resolve: final.
	Reject func(target string)
}

func (s Subject) withDefaults() Subject {
	if s.Targets == [2]string{} {
		s.Targets = [2]string{"web.default.svc.cluster.local:80", "books.default.svc.cluster.local:80"}
	}
	if s.Endpoint == nil {
		s.Endpoint = func(n int) resolve.Endpoint {
			return resolve.Endpoint{ID: resolve.ID{
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 80),
			}}
		}
	}
	if s.Patience == 0 {
		s.Patience = 30 * time.Second
	}
	return s
}

// endpoints returns some of the endpoints to test with.
func (s Subject) endpoints(numbers ...int) []resolve.Endpoint {
	var list []resolve.Endpoint
	for _, n := range numbers {
		list = append(list, s.Endpoint(n))
	}
	return list
}
