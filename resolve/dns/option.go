package dns

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/go-kit/kit/metrics"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/resolve"
)

// Option configures [New].
type Option func(*options)

// options holds the settings of a Resolver.
type options struct {
	file       string // the path of resolv.conf
	hosts      string // the path of the hosts file
	servers    []netip.AddrPort
	search     *search       // nil means the search list of resolv.conf
	timeout    time.Duration // 0 means the timeout of resolv.conf
	attempts   int           // 0 means the number of resolv.conf
	minRefresh time.Duration // the shortest time to the next lookup
	maxRefresh time.Duration // the longest time to the next lookup
	backoff    resolve.Backoff
	families   []dnsmessage.Type
	dial       dialFunc
	counts
}

// search specifies the names to try for a name that need not be complete, as the search list of
// resolv.conf does: which domains are appended to it, and whether the name itself comes first or last.
type search struct {
	domains []string
	ndots   int // a name with at least this number of dots is tried first without a domain
}

// WithResolvConf sets the file with the servers, in the format of resolv.conf(5). It is
// read at each lookup. The default is /etc/resolv.conf.
func WithResolvConf(file string) Option {
	return func(o *options) { o.file = file }
}

// WithHostsFile sets the path of the hosts(5) file. Names in the file are not looked up by DNS.
// The default is /etc/hosts, or System32\drivers\etc\hosts on Windows. A missing file counts as
// empty.
func WithHostsFile(file string) Option {
	return func(o *options) { o.hosts = file }
}

// WithServers sets the servers, in the order in which they are asked. resolv.conf is then not read.
// Port 0 means 53. WithServers panics if an address is invalid.
func WithServers(servers ...netip.AddrPort) Option {
	// Cloned, because the caller may modify the slice later.
	servers = slices.Clone(servers)
	for i, s := range servers {
		if !s.IsValid() {
			panic(fmt.Sprintf("dns: WithServers: address %d of %d is not valid", i+1, len(servers)))
		}
		if s.Port() == 0 {
			servers[i] = netip.AddrPortFrom(s.Addr(), dnsPort)
		}
	}
	return func(o *options) { o.servers = servers }
}

// WithSearch sets the domains that are appended to a name, instead of those in resolv.conf. The
// name itself is tried first if it contains at least ndots dots, and last otherwise. WithSearch
// panics if ndots is negative or a domain is invalid.
func WithSearch(ndots int, domains ...string) Option {
	atLeastZero("WithSearch: ndots", ndots)
	s := &search{ndots: ndots}
	// Converted here, so that a mistake panics in the caller of WithSearch.
	for _, domain := range domains {
		name, err := cleanName(domain)
		if err != nil {
			panic(fmt.Sprintf("dns: WithSearch: domain %q: %v", domain, err))
		}
		s.domains = append(s.domains, name)
	}
	return func(o *options) { o.search = s }
}

// WithTimeout sets the time limit for one answer of one server. 0, the default, means
// the timeout in resolv.conf, or 5 s. It panics if d is negative.
func WithTimeout(d time.Duration) Option {
	atLeastZero("WithTimeout", d)
	return func(o *options) { o.timeout = d }
}

// maxAttempts is the largest argument of WithAttempts.
const maxAttempts = 100

// WithAttempts sets how often the list of servers is tried for each question. 0, the default,
// means the number in resolv.conf, or 2. It panics if n is out of the range from 0 to 100.
func WithAttempts(n int) Option {
	atLeastZero("WithAttempts", n)
	if n > maxAttempts {
		panic(fmt.Sprintf("dns: WithAttempts: %d is more than %d", n, maxAttempts))
	}
	return func(o *options) { o.attempts = n }
}

// WithRefresh sets the time between two lookups of a target to between least and most. Up
// to a tenth is added at random. If least is 0, it is 5 s, or most if that is shorter. If most is
// 0, it is 5 min, or least if that is longer. WithRefresh panics if an argument is negative, or if
// most is less than least but not 0.
func WithRefresh(least, most time.Duration) Option {
	atLeastZero("WithRefresh: least", least)
	atLeastZero("WithRefresh: most", most)
	if most > 0 && most < least {
		panic(fmt.Sprintf("dns: WithRefresh: most %v is below least %v: want more, or 0 for the default", most, least))
	}
	return func(o *options) { o.minRefresh, o.maxRefresh = least, most }
}

// WithBackoff sets the wait after a failed lookup. The default is 100 ms to 60 s with a jitter of
// 0.1. A Min or Max of 0 means its default. If one of the fields is set, a Jitter of 0 means no
// jitter. It panics if a field is out of range.
func WithBackoff(b resolve.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("dns: " + err.Error())
	}
	return func(o *options) { o.backoff = b }
}

// WithIPv4Only resolves to IPv4 addresses only. It overrides an earlier [WithIPv6Only].
func WithIPv4Only() Option {
	return func(o *options) { o.families = []dnsmessage.Type{dnsmessage.TypeA} }
}

// WithIPv6Only resolves to IPv6 addresses only. It overrides an earlier [WithIPv4Only].
func WithIPv6Only() Option {
	return func(o *options) { o.families = []dnsmessage.Type{dnsmessage.TypeAAAA} }
}

// atLeastZero panics if n, the argument of the option with the given name, is negative.
func atLeastZero[N ~int | ~int64](name string, n N) {
	if n < 0 {
		panic(fmt.Sprintf("dns: %s: %v must not be negative", name, n))
	}
}

// withDefaults returns a copy of o in which the path of resolv.conf, the refresh times, the backoff and
// the families have values. The other fields are left: their defaults come from resolv.conf, or 0 has a
// meaning.
func (o *options) withDefaults() options {
	d := *o
	if d.file == "" {
		d.file = "/etc/resolv.conf"
	}
	// The defaults must not contradict the other limit, if only one is set.
	if d.minRefresh == 0 {
		d.minRefresh = 5 * time.Second
		if d.maxRefresh > 0 {
			d.minRefresh = min(d.minRefresh, d.maxRefresh)
		}
	}
	if d.maxRefresh == 0 {
		d.maxRefresh = 5 * time.Minute
	}
	d.minRefresh = min(d.minRefresh, maxTTL) // so that adding a tenth does not overflow
	// Only least may be set, to more than the default of most.
	d.maxRefresh = min(max(d.maxRefresh, d.minRefresh), maxTTL)
	d.backoff = d.backoff.OrDefault()
	if d.families == nil {
		d.families = []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA}
	}
	return d
}

// refresh returns the time until the next lookup, after an answer with the given TTL. It clamps
// the TTL to WithRefresh's range and adds up to a tenth at random, because otherwise all clients
// of a shared cache would ask at the same time.
func (o *options) refresh(ttl time.Duration) time.Duration {
	d := min(max(ttl, o.minRefresh), o.maxRefresh)
	// d/10 may be 0 in tests; N needs a positive argument.
	return d + rand.N(d/10+1)
}

// WithMetrics counts lookups in c. A lookup consists of the questions for a name's SRV records,
// or for a host's addresses. Not counted are canceled lookups, literal addresses, and names in
// the hosts file. The labels of c are:
//
//	record_type  SRV, A/AAAA
//	result       ok         the servers answered with endpoints
//	             not_found  every other counted lookup, including one with last answers
//
// It panics if c is nil.
func WithMetrics(c metrics.Counter) Option {
	if c == nil {
		panic("dns: WithMetrics: the counter is nil")
	}
	// With has fixed labels, so that counting needs no look-up.
	newTally := func(kind string) tally {
		return tally{
			found: c.With("record_type", kind, "result", "ok"),
			none:  c.With("record_type", kind, "result", "not_found"),
		}
	}
	counted := counts{services: newTally("SRV"), hosts: newTally("A/AAAA")}
	return func(o *options) { o.counts = counted }
}

// counts holds the counters for both kinds of lookups, SRV records and addresses.
type counts struct{ services, hosts tally }

// tally holds the counters for one kind of lookup: one for lookups that found endpoints, and one for
// all others. The zero tally counts nothing.
type tally struct{ found, none metrics.Counter }

// count counts one lookup, unless ctx has ended, because a canceled lookup says nothing about the
// servers.
func (t tally) count(ctx context.Context, isFound bool) {
	switch {
	// Without WithMetrics, or after the last stream's end.
	case t.found == nil, ctx.Err() != nil:
	case isFound:
		t.found.Add(1)
	default:
		t.none.Add(1)
	}
}
