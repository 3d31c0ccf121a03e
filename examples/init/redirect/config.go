package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Config says what is redirected where. The zero value is none that could be
// used: it has no uid for the proxy.
type Config struct {
	IncomingPort int // where the proxy takes what comes in, 0 to 65535; -1 is not known
	OutgoingPort int // where it takes what goes out, likewise

	UID int // of the proxy, whose own connections are left alone; below 0 is none
	GID int // likewise

	PortsToRedirect []int    // if there are any, only these ports are redirected on their way in
	InboundIgnore   []string // ports or ranges ("4190", "4567-4568") that are not redirected on their way in
	OutboundIgnore  []string // likewise on their way out
	SubnetsToIgnore []string // CIDRs: what comes from there is not redirected

	Wait bool // wait for the lock of xtables
}

// Validate returns what is wrong with c, all of it at once. An entry of a list
// of ports that cannot be read is not: see [Ports].
func (c Config) Validate() error {
	errs := slices.Concat(c.checkProxy(), c.checkIDs())
	for _, p := range c.PortsToRedirect {
		if p < 0 || p > 65535 {
			errs = append(errs, fmt.Errorf("--ports-to-redirect: %d is no port", p))
		}
	}
	for _, s := range c.SubnetsToIgnore {
		if _, err := netip.ParsePrefix(s); err != nil {
			errs = append(errs, fmt.Errorf("--subnets-to-ignore: %q is no CIDR", s))
		}
	}
	return errors.Join(errs...)
}

func (c Config) checkProxy() (errs []error) {
	var missing []string
	for _, p := range []struct {
		flag string
		port int
	}{{"--incoming-proxy-port", c.IncomingPort}, {"--outgoing-proxy-port", c.OutgoingPort}} {
		switch {
		case p.port == -1:
			missing = append(missing, p.flag)
		case p.port < 0 || p.port > 65535:
			errs = append(errs, fmt.Errorf("%s: %d is no port; give one from 0 to 65535", p.flag, p.port))
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("%s: say where the proxy listens, 0 to 65535", strings.Join(missing, " and ")))
	}
	return errs
}

func (c Config) checkIDs() (errs []error) {
	var root []string
	for _, id := range []struct {
		flag string
		id   int
	}{{"--proxy-uid", c.UID}, {"--proxy-gid", c.GID}} {
		if id.id == 0 {
			root = append(root, id.flag+" 0")
		}
		if int64(id.id) > mostID {
			errs = append(errs, fmt.Errorf("%s: %d is too large; give one up to %d", id.flag, id.id, int64(mostID)))
		}
	}
	if len(root) > 0 {
		errs = append(errs, fmt.Errorf("%s: %w", strings.Join(root, " and "), ErrRoot))
	}
	return errs
}

// mostID is the largest id of a user or group that iptables takes.
const mostID = 1<<32 - 2

// ErrRoot is why there are no rules for a proxy that runs as root.
var ErrRoot = errors.New("a proxy that runs as root cannot be told from everything else that does: " +
	"either nothing of root's would be redirected, or the proxy's own connections would be, to itself, in a loop; " +
	"run it as a user of its own, such as 2102, and give that")

// Loops reports whether there is nothing to tell the connections of the proxy
// by, so that those that it makes come back to it.
func (c Config) Loops() bool { return c.UID < 0 && c.GID < 0 }
