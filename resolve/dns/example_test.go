package dns_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

func ExampleNew() {
	r := dns.New(
		dns.WithServers(netip.MustParseAddrPort("10.96.0.10:53")),
		dns.WithSearch(5, "default.svc.cluster.local", "svc.cluster.local", "cluster.local"),
		dns.WithRefresh(5*time.Second, time.Minute),
	)
	// An address needs no lookup, so this one is answered anywhere.
	for update, err := range r.Resolve(context.Background(), "10.0.0.1:80") {
		if err != nil {
			fmt.Println(err) // the known endpoints stay
			continue
		}
		fmt.Println(update.Kind, update.Endpoints[0].Addr)
		break // it would wait for changes
	}
	// Output:
	// replace 10.0.0.1:80
}

// A name that can never be resolved is the last item of its stream.
func ExampleResolver_Resolve() {
	for _, target := range []string{"web..test:80", "web.test:http", "10.0.0.1"} {
		for _, err := range dns.New().Resolve(context.Background(), target) {
			fmt.Println(errors.Is(err, resolve.ErrUnresolvable), err)
		}
	}
	// Output:
	// true dns: target "web..test:80": not a name that this resolver resolves: the name has an empty label
	// true dns: target "web.test:http": not a name that this resolver resolves: the port is not a number from 1 to 65535
	// true dns: target "10.0.0.1": not a name that this resolver resolves: an address needs a port that is a number: write 10.0.0.1:80 or [fd00::1]:80
}
