package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"net"
	"net/netip"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// socketLabel is the label for an endpoint's Unix socket path.
const socketLabel = "unix"

// staticEndpoints returns the endpoints in s.
func staticEndpoints(s *config.Static) ([]resolve.Endpoint, error) {
	var endpoints []resolve.Endpoint
	var errs []error
	for _, e := range s.List() {
		// The weight is in package resolve's unit.
		endpoint := resolve.Endpoint{Weight: uint32(e.Weight) * weightUnit}
		if path, ok := e.Address.Socket(); ok {
			endpoint.Addr = socketAddr(path)
			endpoint.Labels = map[string]string{socketLabel: path}
		} else {
			parsed, err := static.Endpoints(string(e.Address))
			if err != nil {
				// Other endpoints stay usable.
				errs = append(errs, err)
				continue
			}
			endpoint.Addr = parsed[0].Addr
		}
		endpoints = append(endpoints, endpoint)
	}
	return endpoints, errors.Join(errs...)
}

// weightUnit is how package resolve writes a weight of 1.
const weightUnit = 10_000

// socketAddr makes up an address for a Unix socket, because endpoints are identified by their
// addresses. It is in 100::/64, where no hosts exist (RFC 6666).
func socketAddr(path string) netip.AddrPort {
	digest := sha256.Sum256([]byte(path))
	// The first 8 bytes are the prefix 100::/64, and the digest makes the rest differ.
	addr := [16]byte{0: 1}
	copy(addr[8:], digest[:])
	return netip.AddrPortFrom(netip.AddrFrom16(addr), 1)
}

// dialSocket returns a dial function that connects to a Unix socket instead.
func dialSocket(path string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", path)
	}
}
