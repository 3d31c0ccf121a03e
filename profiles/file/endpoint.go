package file

import (
	"math"
	"net/netip"

	"github.com/gotower/gotower/profiles"
)

// endpoint reads the one place where a target is served.
func (e *entry) endpoint(v value) {
	to := &profiles.Endpoint{}
	wrong := len(v.wrong)
	v.read(fields{
		"addr": into(&to.Addr, "an IP address and a port: 10.0.0.1:80", func(s string) (netip.AddrPort, bool) {
			addr, err := netip.ParseAddrPort(s)
			return addr, err == nil && addr.Port() != 0
		}),
		"labels":     labels(&to.Labels),
		"weight":     count32(&to.Weight, math.MaxUint32),
		"protocol":   into(&to.Protocol, "h2 or opaque", parseProtocol),
		"serverName": word(&to.ServerName),
		"identity":   word(&to.Identity),
		"authority":  word(&to.Authority),
		"opaquePort": into(&to.OpaquePort, "a port from 1 to 65535", parsePort),

		"pingInterval": duration(&to.PingInterval),
		"pingTimeout":  duration(&to.PingTimeout),
	})
	v.require("addr", "where it is: 10.0.0.1:80")
	if to.Addr.IsValid() && len(v.wrong) == wrong {
		if err := to.Validate(); err != nil {
			v.failf("%v", err)
		}
	}
	e.profile.Endpoint = to
}

func parseProtocol(s string) (profiles.Protocol, bool) {
	switch s {
	case "h2":
		return profiles.H2Protocol, true
	case "opaque":
		return profiles.OpaqueProtocol, true
	}
	return profiles.UnknownProtocol, false
}

// oneEndpoint notes what nobody would look at beside an endpoint.
func (v value) oneEndpoint() {
	if item, ok := v.field("endpoint"); !ok || item.isNull() {
		return
	}
	for _, name := range []string{"name", "split"} {
		if item, ok := v.field(name); ok && !item.isNull() {
			item.failf("everything goes to the endpoint: take one of the two out")
		}
	}
}
