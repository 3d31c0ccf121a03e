package dns

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

const dnsPort = 53

// config has the servers and the parameters of one lookup.
type config struct {
	servers  []netip.AddrPort
	search   search
	timeout  time.Duration // time limit of one answer
	attempts int           // how often the list of servers is tried
}

// config returns the parameters of the next lookup. Options take precedence over resolv.conf. With
// WithServers, resolv.conf is not read, and a parameter without an option has its default.
func (o *options) config() (config, error) {
	c := config{servers: o.servers, search: search{ndots: 1}, timeout: 2 * time.Second, attempts: 2}
	if len(o.servers) == 0 {
		text, err := os.ReadFile(o.file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return config{}, fmt.Errorf("dns: %w", err)
		}
		if err := c.read(string(text)); err != nil {
			return config{}, fmt.Errorf("dns: %s: %w", o.file, err)
		}
	}
	if o.search != nil {
		c.search = *o.search
	}
	if o.timeout > 0 {
		c.timeout = o.timeout
	}
	if o.attempts > 0 {
		c.attempts = o.attempts
	}
	return c, nil
}

// read parses text, which has the format of resolv.conf(5), into c. It uses the options
// ndots, timeout and attempts and ignores others. If the file has no nameserver, the server
// is 127.0.0.1, as resolv.conf(5) specifies. The error for an invalid line has the number
// of the line.
func (c *config) read(text string) error {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if i := strings.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if err := c.set(fields[0], fields[1:]); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if len(c.servers) == 0 {
		c.servers = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), dnsPort)}
	}
	return nil
}

func (c *config) set(keyword string, values []string) error {
	switch keyword {
	case "nameserver":
		if len(values) == 0 {
			return errors.New("nameserver without an address")
		}
		addr, err := netip.ParseAddr(values[0])
		if err != nil {
			return fmt.Errorf("nameserver %q is not an IP address", values[0])
		}
		c.servers = append(c.servers, netip.AddrPortFrom(addr, dnsPort))
	case "domain", "search": // the last such line applies
		c.search.domains = nil
		for _, domain := range values {
			if domain == "." {
				continue // the name itself is tried anyway
			}
			if _, err := cleanName(domain); err != nil {
				return fmt.Errorf("%s %q: %w", keyword, domain, err)
			}
			c.search.domains = append(c.search.domains, domain)
		}
	case "options":
		for _, value := range values {
			if err := c.option(value); err != nil {
				return err
			}
		}
	}
	return nil
}

// option parses one option of resolv.conf. It limits numbers as resolv.conf(5) specifies,
// and ignores unknown options.
func (c *config) option(s string) error {
	name, value, _ := strings.Cut(s, ":")
	switch name {
	case "ndots", "timeout", "attempts":
	default:
		return nil
	}
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return fmt.Errorf("options %q: not a number from 0: write %s:2", s, name)
	}
	switch name {
	case "ndots":
		c.search.ndots = int(min(n, 15))
	case "timeout":
		c.timeout = time.Duration(min(max(n, 1), 30)) * time.Second
	case "attempts":
		c.attempts = int(min(max(n, 1), 5))
	}
	return nil
}

// names returns the complete names to look up for name, in the order of the search list. If
// complete is true, the search list does not apply. Names that are too long are left out.
func (s search) names(name string, complete bool) []string {
	if complete {
		return []string{name + "."}
	}
	var list []string
	for _, domain := range s.domains {
		if long, err := cleanName(name + "." + domain); err == nil {
			list = append(list, long+".")
		}
	}
	if strings.Count(name, ".") >= s.ndots {
		return append([]string{name + "."}, list...)
	}
	return append(list, name+".")
}
