package linkerd

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// WithSuffixes limits the requested targets to names below one of the suffixes, such as
// "svc.cluster.local.", in addition to [WithNetworks]. "." means all names. Whole labels are
// compared, without regard to case or a final dot. An empty suffix matches no name.
// linkerd's proxy reads the suffixes from LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES.
//
// Any other target has [profiles.ErrNoProfile] at once, without a call. Without WithSuffixes and
// Networks, all targets are requested.
func WithSuffixes(suffixes ...string) Option {
	return optionFunc(func(o *options) {
		o.gated = true
		for _, s := range suffixes {
			if s = strings.TrimSpace(s); s != "" {
				o.suffixes = append(o.suffixes, plainName(s))
			}
		}
	})
}

// WithNetworks limits the requested targets to addresses in one of the networks, in addition
// to [WithSuffixes]. An IPv6 network contains no IPv4 address. Networks panics if one is invalid.
func WithNetworks(networks ...netip.Prefix) Option {
	for i, n := range networks {
		if !n.IsValid() {
			panic(fmt.Sprintf("linkerd: WithNetworks: network %d of %d is not valid", i+1, len(networks)))
		}
	}
	return optionFunc(func(o *options) {
		o.gated = true
		o.networks = append(o.networks, networks...)
	})
}

// gate decides which targets the controller is asked for.
type gate struct {
	gated    bool // else for all
	suffixes []string
	networks []netip.Prefix
}

func (g *gate) opens(target string) bool {
	if !g.gated {
		return true
	}
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		host = target
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		for _, n := range g.networks {
			if n.Contains(addr.Unmap().WithZone("")) {
				return true
			}
		}
		return false
	}
	name := plainName(host)
	for _, s := range g.suffixes {
		if s == "" || name == s || strings.HasSuffix(name, "."+s) {
			return true
		}
	}
	return false
}

func plainName(s string) string { return strings.ToLower(strings.TrimSuffix(s, ".")) }
