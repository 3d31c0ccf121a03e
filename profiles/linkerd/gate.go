package linkerd

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Names has only those targets asked for that are names below one of the
// suffixes ("svc.cluster.local."), and those of [Networks]. "." is all names;
// labels are compared whole and without regard to case, and a dot at the end
// makes no difference. An empty one is no name at all, as where a list of them
// is split that is empty. linkerd's proxy takes them from
// LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES.
//
// Any other target has [profiles.ErrNoProfile] at once, without a call. Without
// Names and Networks, all targets are asked for.
func Names(suffixes ...string) Option {
	return optionFunc(func(o *options) {
		o.gated = true
		for _, s := range suffixes {
			if s = strings.TrimSpace(s); s != "" {
				o.suffixes = append(o.suffixes, plainName(s))
			}
		}
	})
}

// Networks has only those targets asked for that are addresses in one of the
// networks, and those of [Names]. An IPv4 address is in no IPv6 network.
//
// An invalid network panics.
func Networks(networks ...netip.Prefix) Option {
	for i, n := range networks {
		if !n.IsValid() {
			panic(fmt.Sprintf("linkerd: Networks: network %d of %d is not valid", i+1, len(networks)))
		}
	}
	return optionFunc(func(o *options) {
		o.gated = true
		o.networks = append(o.networks, networks...)
	})
}

// gate decides for which targets the controller is asked.
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
