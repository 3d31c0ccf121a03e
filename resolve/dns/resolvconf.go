package dns

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const dnsPort = 53 // the port of DNS servers

// maxServers is how many servers from resolv.conf are used, as in other resolvers.
const maxServers = 3

// config holds the servers and the parameters of one lookup.
type config struct {
	servers    []netip.AddrPort
	search     search
	timeout    time.Duration // time limit of one answer
	attempts   int           // how often the list of servers is tried
	rotate     bool          // whether each question starts with another server
	sequential bool          // whether AAAA is asked for after A
	overTCP    bool          // whether UDP is not used
	err        error         // the reason why resolv.conf could not be read, if it exists
}

// config returns the parameters for the next lookup. Options take precedence over resolv.conf.
// With WithServers, resolv.conf is not read, and a parameter without an option gets its default.
func (o *options) config() config {
	// The defaults of resolv.conf(5).
	c := config{servers: o.servers, search: search{ndots: 1}, timeout: 5 * time.Second, attempts: 2}
	// Without a readable file, read gets an empty text and sets this host's servers.
	if len(o.servers) == 0 {
		text, err := os.ReadFile(o.file)
		// A missing file is usual, such as in a minimal container.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.err = err
		}
		c.read(string(text))
	}
	// Options replace what resolv.conf says.
	if o.search != nil {
		c.search = *o.search
	}
	if o.timeout > 0 {
		c.timeout = o.timeout
	}
	if o.attempts > 0 {
		c.attempts = o.attempts
	}
	return c
}

// read parses text, in the format of resolv.conf(5), into c. Like Go's resolver, it ignores what
// it does not know or cannot parse. Without a nameserver, the servers are on this host. Without a
// search list, it is the domain in this host's name.
func (c *config) read(text string) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 {
			c.set(fields[0], fields[1:])
		}
	}
	// The default of resolv.conf(5) is the server on this host.
	if len(c.servers) == 0 {
		for _, addr := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
			c.servers = append(c.servers, netip.AddrPortFrom(addr, dnsPort))
		}
	}
	if len(c.search.domains) == 0 {
		host, _ := os.Hostname() // without a name there is no domain
		if _, domain, ok := strings.Cut(host, "."); ok {
			c.search.domains = []string{domain}
		}
	}
}

// set applies one line of resolv.conf: its keyword, such as "nameserver", and the values that follow
// it.
func (c *config) set(keyword string, values []string) {
	switch keyword {
	case "nameserver":
		// Servers beyond the limit are ignored, as in other resolvers.
		if len(values) == 0 || len(c.servers) == maxServers {
			return
		}
		if addr, err := netip.ParseAddr(values[0]); err == nil {
			c.servers = append(c.servers, netip.AddrPortFrom(addr, dnsPort))
		}
	case "domain": // the last line with a domain or a search list applies
		if len(values) > 0 {
			c.search.domains = values[:1]
		}
	case "search":
		// A single dot means no search domain.
		c.search.domains = slices.DeleteFunc(values, func(domain string) bool { return domain == "." })
	case "options":
		for _, value := range values {
			c.option(value)
		}
	}
}

// option parses one value in an options line of resolv.conf, such as "rotate" or "ndots:2". The limits
// are those of resolv.conf(5).
func (c *config) option(s string) {
	// Some options are a word, and others a word and a number.
	name, value, hasValue := strings.Cut(s, ":")
	switch name {
	case "rotate":
		c.rotate = true
	case "single-request", "single-request-reopen":
		c.sequential = true
	case "use-vc", "usevc", "tcp":
		c.overTCP = true
	}
	if !hasValue {
		return
	}
	switch n := leadingNumber(value); name {
	case "ndots":
		// The limits keep a typing error from causing endless questions or waits.
		c.search.ndots = min(n, 15)
	case "timeout":
		c.timeout = time.Duration(max(n, 1)) * time.Second
	case "attempts":
		c.attempts = max(n, 1)
	}
}

// leadingNumber returns the number that s starts with, or 0. It is limited to maxNumber.
func leadingNumber(s string) int {
	end := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		s = s[:end]
	}
	// After the digits, only an overflow can be an error, apart from an empty text.
	n, err := strconv.Atoi(s)
	if s == "" {
		return 0
	}
	if err != nil || n > maxNumber {
		return maxNumber
	}
	return n
}

// maxNumber is the limit of the options timeout and attempts, so that their product does not overflow.
const maxNumber = 1000

// names returns the complete names to look up for name, in the order in which they are tried. If
// complete is true, the search list does not apply. Left out are invalid names, and names that end in
// .onion, which must not be asked for in DNS (RFC 7686).
func (s search) names(name string, complete bool) []string {
	var list []string
	// add appends a name if it can exist at all.
	add := func(name string) {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		if checkLabels(name) == nil && !strings.HasSuffix(name, ".onion") {
			list = append(list, name+".")
		}
	}
	// With a search list, a name with few dots is more likely to be one in a search domain.
	first := complete || strings.Count(name, ".") >= s.ndots
	if first {
		add(name)
	}
	if !complete {
		for _, domain := range s.domains {
			add(name + "." + domain)
		}
	}
	if !first {
		add(name)
	}
	return list
}
