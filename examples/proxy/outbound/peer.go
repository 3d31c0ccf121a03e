package outbound

import (
	"context"
	"crypto/tls"
	"maps"
	"slices"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/tap"
)

// peer is how one endpoint is spoken to.
type peer struct {
	discover.Target

	tls       *tls.Config               // nil: in clear
	identity  string                    // that the endpoint must prove; "" in clear
	authority string                    // instead of the request's; "" is the request's
	header    *tcplayer.TransportHeader // for bytes, see speaking
	port      uint16                    // of the endpoint's proxy, which takes header; 0 is that of the address
	h2        bool                      // discovery or the client says that it takes HTTP/2

	labels meters.Labels
	shown  []tap.Option // by tap
}

// peer decides it. An endpoint that is this pod itself is not spoken to through
// a proxy.
func (o *Outbound) peer(t discover.Target) peer {
	e, p := t.Endpoint, peer{Target: t}
	own := slices.Contains(o.Own, e.Addr.Addr().Unmap())
	if !own {
		p.authority, p.h2, p.port = e.Authority, e.Protocol == resolve.H2, e.OpaquePort
	}
	switch {
	case own:
		p.labels = meters.NoTLS("loopback")
	case e.ServerName == "":
		p.labels = meters.NoTLS("not_provided_by_service_discovery")
	case o.Identity == nil:
		p.labels = meters.NoTLS("disabled")
	default:
		p.identity, p.tls = e.Identity, o.Identity.Client(e.ServerName, e.Identity)
		p.labels = meters.ServerTLS(e.Identity)
	}
	if p.tls != nil && (p.port != 0 || p.authority != "") {
		p.header = new(tcplayer.NewTransportHeader(e.Addr.Port(), p.authority, tcplayer.Opaque))
	}
	p.shown = o.shown(t, p.labels)
	p.labels = p.labels.With(meters.Target(e.Addr)).With(meters.Prefixed("dst", e.Labels)).
		With(meters.Labels{"authority": t.Name})
	return p
}

// speaking is the peer for connections on which v is spoken. Its proxy is not
// told of an endpoint that is not to be looked at.
func (p peer) speaking(v tcplayer.Protocol) peer {
	if p.told() {
		h := *p.header
		h.Protocol = v
		p.header = &h
	}
	return p
}

// told reports whether the endpoint's proxy hears what is spoken.
func (p peer) told() bool { return p.header != nil && p.Endpoint.Protocol != resolve.Opaque }

// errors is what the peer's proxy may say of the client's connection, if there is
// no other peer to choose.
func (p peer) errors() []httplayer.ProxyErrorsOption {
	if p.tls == nil {
		return nil
	}
	return []httplayer.ProxyErrorsOption{httplayer.WithMeshPeer()}
}

func (o *Outbound) shown(t discover.Target, secured meters.Labels) []tap.Option {
	labels := maps.Clone(t.Endpoint.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels["tls"] = secured["tls"]
	if reason := secured["no_tls_reason"]; reason != "" {
		labels["tls"] = reason
	}
	if id := secured["server_id"]; id != "" {
		labels["server_id"] = id
	}
	source := maps.Clone(o.SourceLabels)
	if source == nil {
		source = map[string]string{}
	}
	source["tls"] = "loopback"
	return []tap.Option{tap.Outbound, tap.WithSourceLabels(source), tap.WithDestination(t.Endpoint.Addr, labels)}
}

// dial connects to the endpoint, and counts its connections.
func (o *Outbound) dial(ctx context.Context, p peer) settings.Dial {
	d := tcplayer.Dialer{
		TLS: p.tls, Header: p.header, Port: p.port, Timeout: o.Connect.Timeout,
		Sockets: o.Connect.Socket.Options(), Deny: o.Refuse,
	}
	counted := o.Meters.Transport(ctx, meters.Outbound, meters.Destination, p.labels)
	return tcplayer.NewMeter(counted).WrapDial(d.DialContext)
}

// server serves the connections that speak HTTP. They are the application's own:
// its uploads may pause for as long as they like.
func (o *Outbound) server(requests httplayer.Service) tcplayer.Server {
	return httplayer.NewServer(
		httplayer.Handler(requests, httplayer.WithConnect(), httplayer.WithErrorHeaders(!o.Quiet), httplayer.WithLogger(o.Log)),
		append(o.Config.Server.Options(),
			httplayer.WithMinBodyRate(0, 0), httplayer.WithDrainOnDone(o.Ending), httplayer.WithServerLogger(o.Log))...)
}
