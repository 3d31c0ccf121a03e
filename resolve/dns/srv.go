package dns

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/resolve"
)

// abreast is how many hosts of SRV records are asked for at a time.
const abreast = 8

// services asks for the SRV records of name, and for the addresses that did not
// come with them. Where there are records, they decide, with addresses or
// without.
func (l lookup) services(ctx context.Context, name string) (found, error) {
	a, err := l.ask(ctx, name, dnsmessage.TypeSRV)
	if err != nil {
		return found{}, err
	}
	if len(a.srv) == 0 {
		return a.at(0), nil
	}
	// The order must not decide anything, not even how sums are rounded.
	slices.SortFunc(a.srv, func(a, b dnsmessage.SRVResource) int {
		return cmp.Or(
			cmp.Compare(a.Priority, b.Priority), cmp.Compare(fold(a.Target), fold(b.Target)),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Weight, b.Weight),
		)
	})
	ttl, rest := a.ttl, a.srv
	all := make(map[string]hosts)
	for len(rest) > 0 {
		n := slices.IndexFunc(rest, func(r dnsmessage.SRVResource) bool { return r.Priority != rest[0].Priority })
		if n < 0 {
			n = len(rest)
		}
		where, least, err := l.locate(ctx, rest[:n], a.additional)
		if err != nil {
			return found{}, err
		}
		ttl = min(ttl, least)
		maps.Copy(all, where)
		if endpoints := weigh(rest[:n], where); len(endpoints) > 0 {
			l.remember(all)
			return found{kind: resolve.Replace, endpoints: endpoints, ttl: ttl, final: true}, nil
		}
		rest = rest[n:]
	}
	l.remember(all)
	return found{kind: resolve.Empty, ttl: ttl, final: true}, nil
}

// usable reports whether a record names a host: "." says that the service is
// not there (RFC 2782).
func usable(r dnsmessage.SRVResource) bool { return r.Port != 0 && r.Target.String() != "." }

// locate finds the hosts of records, and the smallest TTL of them.
func (l lookup) locate(
	ctx context.Context, records []dnsmessage.SRVResource, known map[string]hosts,
) (map[string]hosts, time.Duration, error) {
	where := make(map[string]hosts)
	var missing []gap
	for _, r := range records {
		name := fold(r.Target)
		if _, seen := where[name]; seen || !usable(r) {
			continue
		}
		where[name] = l.ofFamilies(known[name])
		if families := l.lacks(name, where[name]); len(families) > 0 {
			missing = append(missing, gap{name, families})
		}
	}
	asked := make([]hosts, len(missing))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(abreast)
	for i, m := range missing {
		group.Go(func() (err error) {
			asked[i], err = l.addresses(ctx, m.name, m.families)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	for i, m := range missing {
		if h := where[m.name]; len(h.addrs) > 0 {
			asked[i] = h.and(asked[i])
		}
		where[m.name] = asked[i]
	}
	ttl := longest
	for h := range maps.Values(where) {
		ttl = min(ttl, h.ttl)
	}
	return where, ttl, nil
}

// ofFamilies leaves out the addresses that were not asked for.
func (l lookup) ofFamilies(h hosts) hosts {
	h.addrs = slices.DeleteFunc(slices.Clone(h.addrs), func(addr netip.Addr) bool {
		return !slices.Contains(l.families, familyOf(addr))
	})
	return h
}

func familyOf(addr netip.Addr) dnsmessage.Type {
	if addr.Is4() {
		return dnsmessage.TypeA
	}
	return dnsmessage.TypeAAAA
}

// gap is a host of SRV records, and the families that it is to be asked for.
type gap struct {
	name     string
	families []dnsmessage.Type
}

// lacks returns the families to ask for: all of a host of which no address came
// along; of another one, those that it had before. What comes along is what the
// server has at hand and has room for, so that one family may be left out that is
// there. To ask for all families of all hosts each time, for that, would be many
// questions, and in vain where there is one family.
func (l lookup) lacks(name string, h hosts) []dnsmessage.Type {
	if len(h.addrs) == 0 {
		return l.families
	}
	return slices.DeleteFunc(slices.Clone(l.had[name]), func(family dnsmessage.Type) bool {
		return slices.ContainsFunc(h.addrs, func(addr netip.Addr) bool { return familyOf(addr) == family })
	})
}

// remember notes for the next lookup which families hosts have.
func (l lookup) remember(all map[string]hosts) {
	clear(l.had)
	for name, h := range all {
		for _, addr := range h.addrs {
			if family := familyOf(addr); !slices.Contains(l.had[name], family) {
				l.had[name] = append(l.had[name], family)
			}
		}
	}
}

// weigh makes endpoints of records of one priority, with weights as the
// package's documentation says.
func weigh(records []dnsmessage.SRVResource, where map[string]hosts) []resolve.Endpoint {
	shares := make(map[netip.AddrPort]float64)
	for _, r := range records {
		if !usable(r) {
			continue
		}
		addrs := where[fold(r.Target)].addrs
		for _, addr := range addrs {
			shares[netip.AddrPortFrom(addr, r.Port)] += float64(r.Weight) / float64(len(addrs))
		}
	}
	sorted := slices.SortedFunc(maps.Keys(shares), netip.AddrPort.Compare)
	total := 0.0
	for _, addr := range sorted {
		total += shares[addr]
	}
	endpoints := make([]resolve.Endpoint, 0, len(sorted))
	for _, addr := range sorted {
		e := resolve.Endpoint{ID: resolve.ID{Addr: addr}}
		if total > 0 {
			weight := math.Round(10_000 * shares[addr] * float64(len(sorted)) / total)
			e.Weight = uint32(min(max(weight, 1), math.MaxUint32))
		}
		endpoints = append(endpoints, e)
	}
	return endpoints
}
