package dns

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/resolve"
)

// lookup performs one lookup for a target, which may take several questions: of several types, for
// several names of the search list, and for the hosts of SRV records. A question that fails does not
// end the lookup: its last answer counts, or else no records.
type lookup struct {
	// sends one question to the servers
	ask        func(ctx context.Context, name string, kind dnsmessage.Type) (answer, error)
	onPartial  func(found) // called with endpoints while a question has no answer yet
	search     search
	families   []dnsmessage.Type // the types of records to ask for: A, AAAA or both
	sequential bool              // whether one family is asked for after the other
	counts     counts
	local      *hosts               // the addresses that the hosts file has for the target's host, or nil
	last       map[recordSet]answer // the answers of the previous lookup; not modified

	mu      sync.Mutex
	answers map[recordSet]answer // the answers of this lookup
	failed  error                // the first error of a question
	stale   bool                 // whether a failed question has its last answer
}

// recordSet identifies the records that a question asks for.
type recordSet struct {
	name string
	kind dnsmessage.Type
}

// found is the result of a lookup, or of one name in it. kind is Replace, Empty or DoesNotExist.
type found struct {
	kind      resolve.Kind
	endpoints []resolve.Endpoint // sorted by address
	ttl       time.Duration      // the time until the next lookup; maxTTL if all questions failed
	final     bool               // whether no further name of the search list is tried
	stale     bool               // whether a failed question has the answer of an earlier lookup
}

// run looks up t. name is the target as the caller wrote it, for errors. The error is the first one
// of a question. It can come with endpoints.
func (l *lookup) run(ctx context.Context, t target, name string) (found, error) {
	// A lookup always has a result. Failed questions only add an error to it.
	f := l.target(ctx, t)
	f.stale = l.stale // l.mu is not needed: all questions have been answered
	if l.failed != nil {
		return f, fmt.Errorf("dns: resolve %q: %w", name, l.failed)
	}
	return f, nil
}

// target looks up t: first its SRV records, if it can have any, and then its host. SRV records that
// exist are the final result. Otherwise their result only contributes its TTL and whether the name
// exists.
func (l *lookup) target(ctx context.Context, t target) found {
	result := found{kind: resolve.DoesNotExist, ttl: maxTTL}
	// The SRV records go first, because they are more specific than a host with a port.
	if t.srv != "" {
		f := l.tryNames(ctx, t.srv, t.complete, l.services)
		l.counts.services.count(ctx, len(f.endpoints) > 0 && !l.stale)
		// SRV records exist, so that the host's own addresses do not matter.
		if f.final {
			return f
		}
		result = result.or(f)
	}
	// The hosts file replaces the servers, for the host as well as its search list.
	if t.host != "" && l.local != nil {
		return l.ofFamilies(*l.local).withPort(t.port)
	}
	if t.host != "" {
		f := l.tryNames(ctx, t.host, t.complete, func(ctx context.Context, name string) found {
			// Partial results become endpoints with the port too.
			return l.addresses(ctx, name, func(h hosts) { l.onPartial(h.withPort(t.port)) }).withPort(t.port)
		})
		l.counts.hosts.count(ctx, len(f.endpoints) > 0 && !l.stale)
		if f.final {
			return f
		}
		result = result.or(f)
	}
	return result
}

// tryNames calls lookUp for the names that a resolver would try for name: with the search domains
// appended, and unchanged. It returns the first result that is marked as final, or else all names'
// results combined. If complete is true, the search list does not apply.
func (l *lookup) tryNames(ctx context.Context, name string, complete bool, lookUp func(context.Context, string) found) found {
	result := found{kind: resolve.DoesNotExist, ttl: maxTTL}
	// The order is that of resolv.conf: search domains or the name itself first.
	for _, name := range l.search.names(name, complete) {
		f := lookUp(ctx, name)
		if f.final {
			return f
		}
		result = result.or(f)
	}
	return result
}

// answerTo asks for the records of name. If that fails, it returns the answer from the previous lookup,
// or else an answer without records, and keeps the error in l.failed. It never fails, because one
// failed question must not fail the lookup.
func (l *lookup) answerTo(ctx context.Context, name string, kind dnsmessage.Type) answer {
	a, err := l.ask(ctx, name, kind)
	// The questions of one lookup are asked concurrently.
	l.mu.Lock()
	defer l.mu.Unlock()
	q := recordSet{name, kind}
	if err != nil {
		if l.failed == nil {
			l.failed = err
		}
		// Old addresses are better than none: the last answer to the same question is used.
		last, ok := l.last[q]
		if !ok {
			// Like an answer without records, but it does not affect the time of the next lookup.
			return answer{hosts: hosts{ttl: maxTTL}}
		}
		l.stale = true
		a = last
		// An old answer's TTL has passed. It must not affect when the next lookup follows.
		a.ttl = maxTTL
	}
	l.answers[q] = a
	return a
}

// or combines the results f and o for two names without endpoints. The combined result is Empty
// if either name exists in DNS, and otherwise DoesNotExist. It takes the smaller TTL.
func (f found) or(o found) found {
	if o.kind == resolve.Empty {
		f.kind = resolve.Empty
	}
	f.ttl = min(f.ttl, o.ttl)
	return f
}

// withPort returns the addresses in h as endpoints with the given port, sorted and each once. Endpoints
// make the result final.
func (h hosts) withPort(port uint16) found {
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
	// Sorted, so that equal addresses are neighbors.
	f.endpoints = slices.CompactFunc(f.endpoints, resolve.Endpoint.Equal)
	return f
}

// resolutionDelay is how long one family's addresses wait for the other's. RFC 8305, section 3,
// recommends 50 ms.
const resolutionDelay = 50 * time.Millisecond

// addresses asks concurrently for name's records of the types in l.families, which are A and AAAA
// or one of them. If one family is answered with addresses and the other stays unanswered for
// resolutionDelay, addresses calls onPartial with these and the other family's last addresses.
func (l *lookup) addresses(ctx context.Context, name string, onPartial func(hosts)) hosts {
	type family struct {
		kind dnsmessage.Type
		hosts
	}
	answers := make(chan family, len(l.families))
	ask := func(kind dnsmessage.Type) {
		answers <- family{kind, l.ofFamilies(l.answerTo(ctx, name, kind).hosts)}
	}
	// The option single-request: some servers and firewalls drop the second of two concurrent questions.
	if l.sequential {
		go func() {
			for _, kind := range l.families {
				ask(kind)
			}
		}()
	} else {
		for _, kind := range l.families {
			go ask(kind)
		}
	}
	// Each goroutine sends once, and the channel's buffer holds all answers, so that none of them
	// blocks.
	// Whichever family is answered first.
	first := <-answers
	if len(l.families) == 1 {
		return first.hosts
	}
	delay := time.NewTimer(resolutionDelay)
	defer delay.Stop()
	select {
	case second := <-answers:
		return first.union(second.hosts)
	case <-delay.C:
	}
	// Slow questions must not hide addresses that are already known. The other family keeps its last
	// addresses meanwhile, because they would otherwise be removed and added again.
	if len(first.addrs) > 0 {
		otherFamily := l.families[0]
		if otherFamily == first.kind {
			otherFamily = l.families[1]
		}
		onPartial(first.union(l.ofFamilies(l.last[recordSet{name, otherFamily}].hosts)))
	}
	// The caller still gets the complete result, when the slow question is answered or has failed.
	return first.union((<-answers).hosts)
}

// maxConcurrent is how many SRV hosts are looked up concurrently.
const maxConcurrent = 8

// services asks for name's SRV records, and for the addresses of their hosts unless these are in
// the answer's additional section. If there are SRV records for name, the result is final even
// without addresses, so that no further name is tried.
func (l *lookup) services(ctx context.Context, name string) found {
	a := l.answerTo(ctx, name, dnsmessage.TypeSRV)
	if len(a.srv) == 0 {
		// Port 0 is never used, because without SRV records there are no endpoints.
		return a.withPort(0)
	}
	// The order of the records must not affect the result.
	srv := slices.SortedFunc(slices.Values(a.srv), func(a, b dnsmessage.SRVResource) int {
		return cmp.Or(
			cmp.Compare(a.Priority, b.Priority), cmp.Compare(fold(a.Target), fold(b.Target)),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Weight, b.Weight),
		)
	})
	// With addresses from the answer, no further question is needed.
	addresses, ttl := l.locate(ctx, srv, a.additional)
	f := found{kind: resolve.Empty, ttl: min(a.ttl, ttl), final: true}
	if f.endpoints = prioritized(srv, addresses); len(f.endpoints) > 0 {
		f.kind = resolve.Replace
	}
	return f
}

// prioritized returns the endpoints for SRV records, which are sorted by priority. The lowest priority
// for which there are addresses becomes the Priority 0, the next one 1, and so on. An address with
// several priorities gets the lowest one. hostsByName holds the addresses for each host in the records.
func prioritized(records []dnsmessage.SRVResource, hostsByName map[string]hosts) (endpoints []resolve.Endpoint) {
	visited := make(map[netip.AddrPort]bool)
	priority := uint32(0)
	for len(records) > 0 {
		// The records are sorted by priority, so that the equal ones are neighbors.
		// The first n records share the lowest priority of those that remain.
		n := slices.IndexFunc(records, func(r dnsmessage.SRVResource) bool { return r.Priority != records[0].Priority })
		if n < 0 {
			n = len(records)
		}
		// How many endpoints the priorities before this one have.
		start := len(endpoints)
		for _, e := range weighted(records[:n], hostsByName) {
			if !visited[e.Addr] {
				visited[e.Addr] = true
				e.Priority = priority
				endpoints = append(endpoints, e)
			}
		}
		// A priority without addresses does not count, because Priorities must start at 0 and have no
		// gaps.
		if len(endpoints) > start {
			priority++
		}
		records = records[n:]
	}
	return endpoints
}

// usable reports whether an SRV record names a host and a port. The host "." means that the
// service does not exist (RFC 2782).
func usable(r dnsmessage.SRVResource) bool { return r.Port != 0 && r.Target.String() != "." }

// locate returns the addresses of the hosts in SRV records, by host name, and the smallest TTL
// among them. additional holds the addresses from the additional section. locate asks the servers
// for the other addresses.
func (l *lookup) locate(
	ctx context.Context, records []dnsmessage.SRVResource, additional map[string]hosts,
) (map[string]hosts, time.Duration) {
	hostsByName := make(map[string]hosts)
	// The hosts that need a question of their own.
	var missing []string
	for _, r := range records {
		name := fold(r.Target)
		if _, ok := hostsByName[name]; ok || !usable(r) {
			continue
		}
		hostsByName[name] = l.ofFamilies(additional[name])
		if len(hostsByName[name].addrs) == 0 {
			missing = append(missing, name)
		}
	}
	answers := make([]hosts, len(missing))
	// The group only limits the number of goroutines. Its functions return no error.
	var group errgroup.Group
	group.SetLimit(maxConcurrent)
	for i, name := range missing {
		group.Go(func() error {
			// Without partial results: the endpoints of one host of several would remove the others.
			answers[i] = l.addresses(ctx, name, func(hosts) {})
			return nil
		})
	}
	_ = group.Wait()
	for i, name := range missing {
		hostsByName[name] = answers[i]
	}
	// The smallest TTL of all hosts decides when the next lookup follows.
	ttl := maxTTL
	for h := range maps.Values(hostsByName) {
		ttl = min(ttl, h.ttl)
	}
	return hostsByName, ttl
}

// ofFamilies returns h without the addresses of families that the options exclude. The slice is copied,
// because h may belong to an answer that is kept.
func (l *lookup) ofFamilies(h hosts) hosts {
	h.addrs = slices.DeleteFunc(slices.Clone(h.addrs), func(addr netip.Addr) bool {
		return !slices.Contains(l.families, familyOf(addr))
	})
	return h
}

// familyOf returns the type of the record that holds addr: A or AAAA.
func familyOf(addr netip.Addr) dnsmessage.Type {
	if addr.Is4() {
		return dnsmessage.TypeA
	}
	return dnsmessage.TypeAAAA
}

// weighted returns the endpoints for SRV records that share a priority. hostsByName holds the addresses
// for each host in the records. A record's weight is divided equally among its addresses. The result is
// scaled so that the mean of Endpoint.Weight is 10 000, which is one unit, because SRV weights have no
// unit. If all weights are 0, those of the endpoints are 0 too, which means not set.
func weighted(records []dnsmessage.SRVResource, hostsByName map[string]hosts) []resolve.Endpoint {
	// The share of the requests for each endpoint. Two records may name the same one.
	shares := make(map[netip.AddrPort]float64)
	for _, r := range records {
		if !usable(r) {
			continue
		}
		// A host without addresses loses its share to the others.
		addrs := hostsByName[fold(r.Target)].addrs
		for _, addr := range addrs {
			shares[netip.AddrPortFrom(addr, r.Port)] += float64(r.Weight) / float64(len(addrs))
		}
	}
	sorted := slices.SortedFunc(maps.Keys(shares), netip.AddrPort.Compare)
	total := 0.0
	// Sorted, because the sum of floats depends on their order, and an unchanged answer must give equal
	// endpoints.
	for _, addr := range sorted {
		total += shares[addr]
	}
	endpoints := make([]resolve.Endpoint, 0, len(sorted))
	for _, addr := range sorted {
		e := resolve.Endpoint{ID: resolve.ID{Addr: addr}}
		// Without weights, all endpoints keep 0, which means the default.
		if total > 0 {
			weight := math.Round(10_000 * shares[addr] * float64(len(sorted)) / total)
			// At least 1, because 0 would mean that the weight is not set.
			e.Weight = uint32(min(max(weight, 1), math.MaxUint32))
		}
		endpoints = append(endpoints, e)
	}
	return endpoints
}
