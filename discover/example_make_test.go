package discover_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
)

// The function acts on the ID of the endpoint, and rejects requests for an ID that it
// does not support. So no request is sent in cleartext by mistake.
func ExampleMakeService() {
	mk := func(ctx context.Context, t discover.Target) httplayer.Service {
		var opts []httplayer.EndpointOption
		switch e := t.Endpoint; {
		case e.Identity != "" && e.Identity != e.ServerName, e.Protocol == resolve.Opaque:
			// layer/tcplayer/identity can verify such a name.
			return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
				return nil, &layer.Error{Layer: "make", Endpoint: e.Addr.String(), Kind: layer.ErrClosed, Reason: "not reached by plain TLS"}
			})
		case e.ServerName != "":
			opts = append(opts, httplayer.WithTLS(&tls.Config{ServerName: e.ServerName, MinVersion: tls.VersionTLS13}))
		}
		if t.Endpoint.Protocol == resolve.H2 {
			opts = append(opts, httplayer.WithHTTP2())
		}
		return httplayer.NewEndpoint(ctx, t.Endpoint.Addr.String(), opts...)
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	addr := netip.MustParseAddrPort("10.0.0.1:443")
	for _, id := range []resolve.ID{
		{Addr: addr}, {Addr: addr, ServerName: "web.example", Protocol: resolve.H2}, {Addr: addr, Identity: "spiffe://mesh/web"},
	} {
		service := mk(ctx, discover.Target{Name: "web", Endpoint: resolve.Endpoint{ID: id}})
		if _, isEndpoint := service.(*httplayer.Endpoint); isEndpoint {
			fmt.Print(layer.Describe(service))
			continue
		}
		_, err := service.Call(ctx, nil)
		fmt.Println(err)
	}
	// Output:
	// endpoint   addr=10.0.0.1:443 protocol=auto connections=0 idle=0 in_flight=0 link=fresh
	// endpoint   addr=10.0.0.1:443 protocol=h2 connections=0 idle=0 in_flight=0 link=fresh
	// make 10.0.0.1:443: closed: not reached by plain TLS
}
