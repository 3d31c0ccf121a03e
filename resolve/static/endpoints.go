package static

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/gotower/gotower/resolve"
)

// Endpoints reads addresses of the form "10.0.0.1:80" or "[fd00::1]:80". They
// have nothing but their address; set what else there is to say. The error
// names each address that is wrong, and says how: a host name, no port, port 0,
// or 0.0.0.0 and ::, which would connect to this host.
func Endpoints(addrs ...string) ([]resolve.Endpoint, error) {
	var errs []error
	endpoints := make([]resolve.Endpoint, 0, len(addrs))
	for _, s := range addrs {
		addr, err := parse(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("static: address %q: %w", s, err))
			continue
		}
		endpoints = append(endpoints, resolve.Endpoint{ID: resolve.ID{Addr: addr}})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return endpoints, nil
}

func parse(s string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(s)
	switch {
	case err == nil && addr.Port() == 0:
		return addr, errors.New("port 0 cannot be connected to")
	case err == nil && addr.Addr().Unmap().WithZone("").IsUnspecified():
		return addr, errors.New("the unspecified address is for listening: write the address to connect to")
	case err == nil:
		return addr, nil
	}
	if _, bare := netip.ParseAddr(s); bare == nil {
		return addr, errors.New("no port: write 10.0.0.1:80 or [fd00::1]:80")
	}
	return addr, fmt.Errorf("not an IP address with a port: %w", err)
}
