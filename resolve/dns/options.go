package dns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/resolve"
)

// Option changes what New returns.
type Option interface{ apply(*options) }

type options struct {
	file       string
	hosts      string
	servers    []netip.AddrPort
	search     *search
	timeout    time.Duration // 0 means what the file says
	attempts   int           // 0 means what the file says
	least      time.Duration
	most       time.Duration
	backoff    resolve.Backoff
	namedPorts bool
	families   []dnsmessage.Type
	dial       dialFunc
	counts
}

// search is what is made of names that are not complete.
type search struct {
	domains []string
	ndots   int
}

type option func(*options)

func (o option) apply(to *options) { o(to) }

// ResolvConf sets the file that says which servers to ask, and how, in the form
// of resolv.conf(5). It is read at each lookup, so changes to it are followed.
// The default is /etc/resolv.conf.
func ResolvConf(file string) Option {
	return option(func(o *options) { o.file = file })
}

// HostsFile sets the file of names that need no DNS server, in the form of
// hosts(5). The default is /etc/hosts, or System32\drivers\etc\hosts on Windows. A
// file that does not exist has no names.
func HostsFile(file string) Option {
	return option(func(o *options) { o.hosts = file })
}

// Servers sets the servers to ask, in that order, instead of those in the file,
// which is then not read at all: there is no search list but that of [Search].
// Port 0 stands for 53. None of them means those in the file, the default. An
// invalid address panics.
func Servers(servers ...netip.AddrPort) Option {
	servers = slices.Clone(servers)
	for i, s := range servers {
		if !s.IsValid() {
			panic(fmt.Sprintf("dns: Servers: address %d of %d is not valid", i+1, len(servers)))
		}
		if s.Port() == 0 {
			servers[i] = netip.AddrPortFrom(s.Addr(), dnsPort)
		}
	}
	return option(func(o *options) { o.servers = servers })
}

// Search sets the domains that are tried after a name, in that order, instead
// of those in the file. A name with ndots dots or more is tried as it is first,
// one with fewer is tried so last. A negative ndots and a domain that is not a
// name panic.
func Search(ndots int, domains ...string) Option {
	atLeastZero("Search: ndots", ndots)
	for _, domain := range domains {
		if _, err := cleanName(domain); err != nil {
			panic(fmt.Sprintf("dns: Search: domain %q: %v", domain, err))
		}
	}
	s := &search{ndots: ndots, domains: slices.Clone(domains)}
	return option(func(o *options) { o.search = s })
}

// Timeout sets how long to wait for one answer of one server. The default, and
// 0, is the timeout in the file, or else 2 s. A negative duration panics.
func Timeout(d time.Duration) Option {
	atLeastZero("Timeout", d)
	return option(func(o *options) { o.timeout = d })
}

// maxAttempts limits Attempts.
const maxAttempts = 100

// Attempts sets how many times to try all servers for one question, 1 to 100. The
// default, and 0, is the number in the file, or else 2. Other numbers panic.
func Attempts(n int) Option {
	atLeastZero("Attempts", n)
	if n > maxAttempts {
		panic(fmt.Sprintf("dns: Attempts: %d is more than %d", n, maxAttempts))
	}
	return option(func(o *options) { o.attempts = n })
}

// Refresh sets the bounds of the time after which a target is looked up again,
// whatever its TTL is. Up to a tenth is added at random. The defaults, and 0, are 5
// s and 5 min. If one bound is a default that contradicts the other, it is the
// other. A negative duration and a most below least panic.
func Refresh(least, most time.Duration) Option {
	atLeastZero("Refresh: least", least)
	atLeastZero("Refresh: most", most)
	if most > 0 && most < least {
		panic(fmt.Sprintf("dns: Refresh: most %v is below least %v: want more, or 0 for the default", most, least))
	}
	return option(func(o *options) { o.least, o.most = least, most })
}

// Backoff sets how long to wait after a lookup failed. The default is 100 ms to
// 60 s with a tenth of jitter. A field that is 0 has its default; one that is out of
// range panics.
func Backoff(b resolve.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("dns: " + err.Error())
	}
	return option(func(o *options) { o.backoff = b })
}

// NamedPorts takes targets whose port is a name: "web.example.org:http" asks
// for the SRV records of "_http._tcp.web.example.org". The default is to refuse
// them.
func NamedPorts() Option {
	return option(func(o *options) { o.namedPorts = true })
}

// IPv4Only asks for no AAAA records and takes none. The last of IPv4Only and
// [IPv6Only] counts.
func IPv4Only() Option {
	return option(func(o *options) { o.families = []dnsmessage.Type{dnsmessage.TypeA} })
}

// IPv6Only asks for no A records and takes none.
func IPv6Only() Option {
	return option(func(o *options) { o.families = []dnsmessage.Type{dnsmessage.TypeAAAA} })
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
	d.least = min(d.least, longest) // so a tenth more is a Duration still
	d.most = min(max(d.most, d.least), longest)
	d.backoff = d.backoff.OrDefault()
	if d.families == nil {
		d.families = []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA}
	}
	return d
}

// refresh is when to ask again: what came with one answer to many, from a cache
// that they share, expires for all of them at once.
func (o *options) refresh(ttl time.Duration) time.Duration {
	d := min(max(ttl, o.least), o.most)
	return d + rand.N(d/10+1)
}
