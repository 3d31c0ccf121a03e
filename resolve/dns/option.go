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

type options struct {
	file     string // the path of resolv.conf
	hosts    string // the path of the hosts file
	servers  []netip.AddrPort
	search   *search       // nil means the search list of resolv.conf
	timeout  time.Duration // 0 means the timeout of resolv.conf
	attempts int           // 0 means the number of resolv.conf
	least    time.Duration // the shortest time to the next lookup
	most     time.Duration // the longest time to the next lookup
	backoff  resolve.Backoff
	families []dnsmessage.Type
	dial     dialFunc
	counts
}

// search specifies the names to try for a name: which domains are appended to it, and whether
// the name itself comes first or last.
type search struct {
	domains []string
	ndots   int // a name with at least this number of dots is tried first without a domain
}

// WithResolvConf sets the file with the servers, in the format of resolv.conf(5). It is
// read at each lookup. The default is /etc/resolv.conf.
func WithResolvConf(file string) Option {
	return func(o *options) { o.file = file }
}

// WithHostsFile sets the path of the file of hosts(5). Names in the file are not looked up
// by DNS. The default is /etc/hosts, or System32\drivers\etc\hosts on Windows. A missing
// file counts as empty.
func WithHostsFile(file string) Option {
	return func(o *options) { o.hosts = file }
}

// WithServers sets the servers, in the order in which they are asked. resolv.conf is then not read.
// Port 0 means 53. WithServers panics if an address is invalid.
func WithServers(servers ...netip.AddrPort) Option {
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

// WithSearch sets the domains that are appended to a name, instead of the domains in resolv.conf.
// The name itself is tried first if it has at least ndots dots, and last otherwise. WithSearch
// panics if ndots is negative or a domain is invalid.
func WithSearch(ndots int, domains ...string) Option {
	atLeastZero("WithSearch: ndots", ndots)
	for _, domain := range domains {
		if _, err := cleanName(domain); err != nil {
			panic(fmt.Sprintf("dns: WithSearch: domain %q: %v", domain, err))
		}
	}
	s := &search{ndots: ndots, domains: slices.Clone(domains)}
	return func(o *options) { o.search = s }
}

// WithTimeout sets the time limit for one answer of one server. 0, the default, means
// the timeout in resolv.conf, or 2 s. It panics if d is negative.
func WithTimeout(d time.Duration) Option {
	atLeastZero("WithTimeout", d)
	return func(o *options) { o.timeout = d }
}

// maxAttempts is the largest argument of WithAttempts.
const maxAttempts = 100

// WithAttempts sets how often the list of servers is tried for one question. 0, the default,
// means the number in resolv.conf, or 2. It panics if n is out of the range from 0 to 100.
func WithAttempts(n int) Option {
	atLeastZero("WithAttempts", n)
	if n > maxAttempts {
		panic(fmt.Sprintf("dns: WithAttempts: %d is more than %d", n, maxAttempts))
	}
	return func(o *options) { o.attempts = n }
}

// WithRefresh sets the time between two lookups of a target: at least the argument least, and at
// most the argument most. Up to a tenth is added at random. If least is 0, it is 5 s, or most if
// that is shorter. If most is 0, it is 5 min, or least if that is longer. WithRefresh panics if an
// argument is negative, or if most is less than least but not 0.
func WithRefresh(least, most time.Duration) Option {
	atLeastZero("WithRefresh: least", least)
	atLeastZero("WithRefresh: most", most)
	if most > 0 && most < least {
		panic(fmt.Sprintf("dns: WithRefresh: most %v is below least %v: want more, or 0 for the default", most, least))
	}
	return func(o *options) { o.least, o.most = least, most }
}

// WithBackoff sets the wait after a failed lookup. The default is 100 ms to 60 s with a jitter of
// 0.1. A Min or Max of 0 has its default. If one of the fields is set, a Jitter of 0 means no
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

func atLeastZero[N ~int | ~int64](what string, n N) {
	if n < 0 {
		panic(fmt.Sprintf("dns: %s: %v must not be negative", what, n))
	}
}

func (o *options) withDefaults() options {
	d := *o
	if d.file == "" {
		d.file = "/etc/resolv.conf"
	}
	if d.least == 0 {
		d.least = 5 * time.Second
		if d.most > 0 {
			d.least = min(d.least, d.most)
		}
	}
	if d.most == 0 {
		d.most = 5 * time.Minute
	}
	d.least = min(d.least, maxTTL) // so that adding a tenth does not overflow
	d.most = min(max(d.most, d.least), maxTTL)
	d.backoff = d.backoff.OrDefault()
	if d.families == nil {
		d.families = []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA}
	}
	return d
}

// refresh returns the time until the next lookup, after an answer with the given TTL. It limits
// the TTL to the range of WithRefresh and adds up to a tenth at random. Otherwise all clients
// of a shared cache would ask at the same time.
func (o *options) refresh(ttl time.Duration) time.Duration {
	d := min(max(ttl, o.least), o.most)
	return d + rand.N(d/10+1)
}

// WithMetrics counts lookups in c. A lookup is the set of questions for the SRV records of a
// name, or for the addresses of a host. Not counted are canceled lookups, literal addresses,
// names in the hosts file, and targets that fail because resolv.conf is invalid. The labels of c
// are:
//
//	record_type  SRV, A/AAAA
//	result       ok         the lookup found endpoints
//	             not_found  every other counted lookup, including a failed one
//
// It panics if c is nil.
func WithMetrics(c metrics.Counter) Option {
	if c == nil {
		panic("dns: WithMetrics: the counter is nil")
	}
	of := func(kind string) tally {
		return tally{
			found: c.With("record_type", kind, "result", "ok"),
			none:  c.With("record_type", kind, "result", "not_found"),
		}
	}
	counted := counts{services: of("SRV"), hosts: of("A/AAAA")}
	return func(o *options) { o.counts = counted }
}

// counts has the counters of both kinds of lookups: of SRV records and of addresses.
type counts struct{ services, hosts tally }

// tally has the counters of one kind of lookup. The zero tally counts nothing.
type tally struct{ found, none metrics.Counter }

func (t tally) count(ctx context.Context, f found, err error) {
	switch {
	case t.found == nil, err != nil && ctx.Err() != nil:
	case err == nil && len(f.endpoints) > 0:
		t.found.Add(1)
	default:
		t.none.Add(1)
	}
}
