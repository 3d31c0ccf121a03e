package resolvetest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gotower/gotower/resolve"
)

// Subject describes a resolver under test and its abilities.
type Subject struct {
	// New makes a resolver and its source, without targets. It is called for each check. It
	// should release resources in t.Cleanup.
	New func(t testing.TB) (resolve.Resolver, Source)

	// Targets are two names that the resolver resolves. The default is
	// "web.default.svc.cluster.local:80" and "books.default.svc.cluster.local:80".
	Targets [2]string

	// Endpoint returns the n-th test endpoint, n from 0 to 9, with all fields that the
	// resolver supports. The resolver must yield it unchanged. The default is 10.0.0.n:80
	// without other fields.
	Endpoint func(n int) resolve.Endpoint

	// Relabel returns e with other labels or another weight, and Rekey returns e with
	// another ID at the same address. Nil means that the resolver does not support such a
	// change.
	Relabel func(e resolve.Endpoint) resolve.Endpoint
	Rekey   func(e resolve.Endpoint) resolve.Endpoint

	// Timeout limits each wait of a check. A correct resolver never reaches it. The default
	// is 30 s, for slow machines.
	Timeout time.Duration
}

// Source controls the source of endpoints behind a resolver. A function must not wait for
// the consumers of streams, because a consumer may be stalled. All functions except Set may
// be nil.
type Source struct {
	// Set replaces the endpoints of the target by at least one endpoint.
	Set func(target string, endpoints ...resolve.Endpoint)

	// Empty makes the target exist without endpoints.
	Empty func(target string)

	// DoesNotExist removes the target from the source, so that the target does not exist.
	DoesNotExist func(target string)

	// Send sends u unchanged, as one message, to the target's streams. It is for sources with
	// incremental messages.
	Send func(target string, u resolve.Update)

	// Interrupt makes the source fail, calls meanwhile, and then makes the source work
	// again. The resolver yields an error during the failure. A Set in meanwhile takes
	// effect afterwards.
	Interrupt func(target string, meanwhile func())

	// Reject makes the target unresolvable.
	Reject func(target string)
}

// withDefaults returns s with a value in each field that has a default and is not set.
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
	if s.Timeout == 0 {
		s.Timeout = 30 * time.Second
	}
	return s
}

// endpoints returns the test endpoints with the given numbers.
func (s Subject) endpoints(numbers ...int) []resolve.Endpoint {
	var list []resolve.Endpoint
	for _, n := range numbers {
		list = append(list, s.Endpoint(n))
	}
	return list
}
