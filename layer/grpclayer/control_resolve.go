package grpclayer

import (
	"context"
	"iter"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// controlResolver finds the addresses of a control plane as linkerd's proxy
// does: SRV records first, then addresses. addr is "host:port".
func controlResolver(addr string, r resolve.Resolver) resolve.Resolver {
	if known := knownAddresses(addr); known != nil {
		return static.New(map[string][]resolve.Endpoint{addr: known})
	}
	return resolve.ServeStale(resolve.Fallback(services(r), r), resolve.StalePolicy{})
}

// knownAddresses are those that need no look-up; nil if one is needed. A DNS
// server is not to be asked for localhost (RFC 6761, section 6.3).
func knownAddresses(addr string) []resolve.Endpoint {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil
	}
	var ips []netip.Addr
	if ip, err := netip.ParseAddr(host); err == nil {
		ips = append(ips, ip)
	} else if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		ips = append(ips, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	}
	var known []resolve.Endpoint
	for _, ip := range ips {
		known = append(known, resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(ip, uint16(n))}})
	}
	return known
}

// services asks for the SRV records of a host, which have ports of their own.
// Where there are none, or the server does not know how to say so, the target
// does not exist, so that something else can be asked for.
func services(r resolve.Resolver) resolve.Resolver {
	return resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		host, _, _ := net.SplitHostPort(target)
		return func(yield func(resolve.Update, error) bool) {
			answered := false
			for u, err := range r.Resolve(ctx, host) {
				switch {
				case err != nil && !answered:
					u, err = resolve.Update{Kind: resolve.DoesNotExist}, nil
				case err == nil && u.Kind == resolve.Empty:
					u.Kind = resolve.DoesNotExist
				case err == nil && len(u.Endpoints) > 0:
					answered = true
				}
				if !yield(u, err) {
					return
				}
			}
		}
	})
}
