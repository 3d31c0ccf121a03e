package profiles_test

import (
	"fmt"
	"net/netip"

	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

// The destination of a connection is decided before its first byte is read.
func ExampleProfile_Dispatch() {
	for _, p := range []profiles.Profile{
		{},
		{Name: "web.default.svc.cluster.local"},
		{Name: "web.default.svc.cluster.local", Targets: []profiles.Target{{Authority: "web-v2:80", Weight: 1}}},
		{Endpoint: &resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort("10.1.2.3:5432")}}, OpaqueProtocol: true},
	} {
		d := p.Dispatch("10.96.0.10:80")
		fmt.Println(d.To, d.Authority, "opaque:", d.Opaque)
	}
	// Output:
	// target 10.96.0.10:80 opaque: false
	// apex web.default.svc.cluster.local:80 opaque: false
	// routes web.default.svc.cluster.local:80 opaque: false
	// endpoint 10.1.2.3:5432 opaque: true
}
