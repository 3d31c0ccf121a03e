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

// lookup performs one lookup of a target. It may ask several questions.
type lookup struct {
	// sends one question to the servers
	ask      func(ctx context.Context, name string, kind dnsmessage.Type) (answer, error)
	search   search
	families []dnsmessage.Type // the types of records to ask for: A, AAAA or both
	counts   counts
	local    *hosts // the addresses that the hosts file has for the target's host, or nil
}

// found is the result of a lookup. kind is Replace, Empty or DoesNotExist.
type found struct {
	kind      resolve.Kind
	endpoints []resolve.Endpoint // sorted by address
	ttl       time.Duration      // the time until the next lookup
	final     bool               // whether no further name of the search list is tried
}

func (l lookup) target(ctx context.Context, t target) (found, error) {
	result := found{kind: resolve.DoesNotExist, ttl: maxTTL}
	if t.srv != "" {
		f, err := l.tryNames(ctx, t.srv, t.complete, l.services)
		l.counts.services.count(ctx, f, err)
		if err != nil || f.final {
			return f, err
		}
		result = result.or(f)
	}
	if t.host != "" && l.local != nil {
		return l.ofFamilies(*l.local).at(t.port), nil
	}
	if t.host != "" {
		f, err := l.tryNames(ctx, t.host, t.complete, func(ctx context.Context, name string) (found, error) {
			h, err := l.addresses(ctx, name)
			return h.at(t.port), err
		})
		l.counts.hosts.count(ctx, f, err)
		if err != nil || f.final {
			return f, err
		}
		result = result.or(f)
	}
	return result, nil
}

// tryNames looks up name by the function look: unchanged, and with each domain of the search list
// appended. It returns the first result that is marked as final, or else the combined results of
// all names. If the argument complete is true, the search list does not apply.
func (l lookup) tryNames(
	ctx context.Context, name string, complete bool, look func(context.Context, string) (found, error),
) (found, error) {
	result := found{kind: resolve.DoesNotExist, ttl: maxTTL}
	for _, name := range l.search.names(name, complete) {
		f, err := look(ctx, name)
		switch {
		case err != nil:
			return found{}, err
		case f.final:
			return f, nil
		}
		result = result.or(f)
	}
	return result, nil
}

// or combines the results f and o of two names without endpoints. The combined result is Empty if
// either name exists in DNS, and otherwise DoesNotExist. It has the smaller TTL.
func (f found) or(o found) found {
	if o.kind == resolve.Empty {
		f.kind = resolve.Empty
	}
	f.ttl = min(f.ttl, o.ttl)
	return f
}

func (h hosts) at(port uint16) found {
	f := found{kind: resolve.DoesNotExist, ttl: h.ttl}
	if h.exists {
		f.kind = resolve.Empty
	}
	for _, addr := range h.addrs {
		f.endpoints = append(f.endpoints, resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(addr, port)}})
	}
	if len(f.endpoints) > 0 {
		f.kind, f.final = resolve.Replace, true
	}
	slices.SortFunc(f.endpoints, func(a, b resolve.Endpoint) int { return a.Addr.Compare(b.Addr) })
	f.endpoints = slices.CompactFunc(f.endpoints, resolve.Endpoint.Equal)
	return f
}

// addresses asks concurrently for the records of name with the types in l.families, which are A
// and AAAA or one of them. It returns an error if one of the questions fails.
func (l lookup) addresses(ctx context.Context, name string) (hosts, error) {
	answers := make([]answer, len(l.families))
	group, ctx := errgroup.WithContext(ctx)
	for i, kind := range l.families {
		group.Go(func() (err error) {
			answers[i], err = l.ask(ctx, name, kind)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return hosts{}, err
	}
	h := answers[0].hosts
	for _, a := range answers[1:] {
		h = h.union(a.hosts)
	}
	return h, nil
}

// maxConcurrent is the number of hosts of SRV records that are looked up concurrently.
const maxConcurrent = 8

// services asks for the SRV records of name, and for the addresses of the hosts in these records.
// It asks only for addresses that are not in the additional section of the answer. If name has SRV
// records, the result is final even without addresses, so that no further name is tried.
func (l lookup) services(ctx context.Context, name string) (found, error) {
	a, err := l.ask(ctx, name, dnsmessage.TypeSRV)
	if err != nil {
		return found{}, err
	}
	if len(a.srv) == 0 {
		return a.at(0), nil
	}
	// The order of the records must not affect the result.
	slices.SortFunc(a.srv, func(a, b dnsmessage.SRVResource) int {
		return cmp.Or(
			cmp.Compare(a.Priority, b.Priority), cmp.Compare(fold(a.Target), fold(b.Target)),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Weight, b.Weight),
		)
	})
	ttl, rest := a.ttl, a.srv
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
		if endpoints := weighted(rest[:n], where); len(endpoints) > 0 {
			return found{kind: resolve.Replace, endpoints: endpoints, ttl: ttl, final: true}, nil
		}
		rest = rest[n:]
	}
	return found{kind: resolve.Empty, ttl: ttl, final: true}, nil
}

// usable reports whether a SRV record has a host and a port. The host "." means that the
// service does not exist (RFC 2782).
func usable(r dnsmessage.SRVResource) bool { return r.Port != 0 && r.Target.String() != "." }

// locate returns the addresses of the hosts in SRV records, as a map by host name, and the
// smallest TTL of the addresses. known has the addresses from the additional section. locate asks
// the servers for the other addresses.
func (l lookup) locate(
	ctx context.Context, records []dnsmessage.SRVResource, known map[string]hosts,
) (map[string]hosts, time.Duration, error) {
	where := make(map[string]hosts)
	var missing []string
	for _, r := range records {
		name := fold(r.Target)
		if _, seen := where[name]; seen || !usable(r) {
			continue
		}
		where[name] = l.ofFamilies(known[name])
		if len(where[name].addrs) == 0 {
			missing = append(missing, name)
		}
	}
	asked := make([]hosts, len(missing))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrent)
	for i, name := range missing {
		group.Go(func() (err error) {
			asked[i], err = l.addresses(ctx, name)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	for i, name := range missing {
		where[name] = asked[i]
	}
	ttl := maxTTL
	for h := range maps.Values(where) {
		ttl = min(ttl, h.ttl)
	}
	return where, ttl, nil
}

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

// weighted returns the endpoints for SRV records of one priority. The argument where has the
// addresses of each host of the records, by host name. The weight of a record is divided equally
// among its addresses. Endpoint.Weight is the weight of the address divided by the mean weight,
// times 10 000.
func weighted(records []dnsmessage.SRVResource, where map[string]hosts) []resolve.Endpoint {
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
