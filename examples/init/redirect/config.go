package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Config configures the redirection. The zero value is not valid, because its UID of 0 is
// root.
type Config struct {
	IncomingPort int // port of the proxy for inbound connections, 0 to 65535; -1: not set
	OutgoingPort int // port of the proxy for outbound connections, 0 to 65535; -1: not set

	UID int // user of the proxy; its connections are not redirected; below 0: not set
	GID int // group of the proxy; its connections are not redirected; below 0: not set

	PortsToRedirect []int    // if not empty, only these inbound ports are redirected
	InboundIgnore   []string // inbound ports or ranges ("4190", "4567-4568") that are not redirected
	OutboundIgnore  []string // outbound ports or ranges that are not redirected
	SubnetsToIgnore []string // source networks (CIDR) with connections that are not redirected

	Wait bool // wait for the xtables lock
}

// Validate returns an error that joins all errors in c. Invalid entries of port lists are not
// errors, because [Ports] leaves them out.
func (c Config) Validate() error {
	// All mistakes are reported at once.
	errs := slices.Concat(c.checkProxy(), c.checkIDs())
	for _, p := range c.PortsToRedirect {
		if p < 0 || p > 65535 {
			errs = append(errs, fmt.Errorf("--ports-to-redirect: %d must be a port", p))
		}
	}
	for _, s := range c.SubnetsToIgnore {
		if _, err := netip.ParsePrefix(s); err != nil {
			errs = append(errs, fmt.Errorf("--subnets-to-ignore: %q must be a CIDR", s))
		}
	}
	return errors.Join(errs...)
}

// checkProxy returns the errors in the proxy's ports.
func (c Config) checkProxy() (errs []error) {
	// missing collects both flags for a single error.
	var missing []string
	for _, p := range []struct {
		flag string
		port int
	}{{"--incoming-proxy-port", c.IncomingPort}, {"--outgoing-proxy-port", c.OutgoingPort}} {
		// -1 is the default of the flags.
		switch {
		case p.port == -1:
			missing = append(missing, p.flag)
		case p.port < 0 || p.port > 65535:
			errs = append(errs, fmt.Errorf("%s: %d must be a port from 0 to 65535", p.flag, p.port))
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("%s: required, a port from 0 to 65535", strings.Join(missing, " and ")))
	}
	return errs
}

// checkIDs returns the errors in the user ID and the group ID of the proxy.
func (c Config) checkIDs() (errs []error) {
	// root collects both flags for a single error.
	var root []string
	for _, id := range []struct {
		flag string
		id   int
	}{{"--proxy-uid", c.UID}, {"--proxy-gid", c.GID}} {
		if id.id == 0 {
			root = append(root, id.flag+" 0")
		}
		// The IDs are ints, which may be larger than 32 bits.
		if int64(id.id) > maxID {
			errs = append(errs, fmt.Errorf("%s: %d must be at most %d", id.flag, id.id, int64(maxID)))
		}
	}
	if len(root) > 0 {
		errs = append(errs, fmt.Errorf("%s: %w", strings.Join(root, " and "), ErrRoot))
	}
	return errs
}

// maxID is the largest user or group ID that iptables accepts.
const maxID = 1<<32 - 2

// ErrRoot reports that the proxy would run as root. The rules could then not distinguish its
// connections from those of root's other processes.
var ErrRoot = errors.New("a proxy that runs as root cannot be distinguished from other processes of root; " +
	"run it as a separate user such as 2102")

// Loops reports whether connections of the proxy would be redirected to the proxy itself,
// in a loop. They would if neither UID nor GID is set.
func (c Config) Loops() bool { return c.UID < 0 && c.GID < 0 }
