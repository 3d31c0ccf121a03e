package outbound

import (
	"context"
	"crypto/tls"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/tap"
)

// peer has the connection settings of one endpoint.
type peer struct {
	discover.Target

	tls       *tls.Config               // nil: cleartext
	identity  string                    // required of the endpoint; "" without TLS
	authority string                    // replaces the request's, unless it is ""
	header    *tcplayer.TransportHeader // for opaque bytes, see withProtocol
	port      uint16                    // of the endpoint's proxy, which accepts header; 0: the port of the address
	h2        bool                      // discovery or the client reports that it accepts HTTP/2

	labels     meters.Labels
	tapOptions []tap.Option
}

// peer returns the settings of t. An endpoint of this pod is connected to in
// cleartext and without a proxy.
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
	p.tapOptions = o.tapOptions(t, p.labels)
	p.labels = p.labels.With(meters.Target(e.Addr)).With(meters.Prefixed("dst", e.Labels)).
		With(meters.Labels{"authority": t.Name})
	return p
}

// withProtocol returns p for connections of protocol v. The header of an opaque
// endpoint stays opaque.
func (p peer) withProtocol(v tcplayer.Protocol) peer {
	if p.announcesProtocol() {
		h := *p.header
		h.Protocol = v
		p.header = &h
	}
	return p
}

// announcesProtocol reports whether the transport header contains the protocol.
func (p peer) announcesProtocol() bool {
	return p.header != nil && p.Endpoint.Protocol != resolve.Opaque
}

// proxyErrors returns the options by which an error of the endpoint's proxy closes the
// client's connection. They are used if no other endpoint exists.
func (p peer) proxyErrors() []httplayer.ProxyErrorsOption {
	if p.tls == nil {
		return nil
	}
	return []httplayer.ProxyErrorsOption{httplayer.WithMeshPeer()}
}

func (o *Outbound) tapOptions(t discover.Target, secured meters.Labels) []tap.Option {
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

// dial connects to the endpoint and counts the connections.
func (o *Outbound) dial(p peer) settings.Dial {
	d := tcplayer.Dialer{
		TLS: p.tls, Header: p.header, Port: p.port, Timeout: o.Connect.Timeout,
		Sockets: o.Connect.Socket.Options(), Deny: o.Refuse,
	}
	instruments := o.Meters.Transport(meters.Outbound, meters.Destination, p.labels)
	return tcplayer.NewMeter(instruments).WrapDial(d.DialContext)
}

// literalTarget returns the endpoint of a target that is an address.
func literalTarget(target string) (discover.Target, bool) {
	addr, err := netip.ParseAddrPort(target)
	return discover.Target{Name: target, Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: addr}}}, err == nil
}

// forwardTarget is the endpoint that the profile of a target names, such as the pod
// of a pod address. Equal endpoints of profiles have the same pointer.
type forwardTarget struct {
	target   string
	endpoint *profiles.Endpoint
}

func (f forwardTarget) String() string { return f.target + " at " + f.endpoint.String() }

func (f forwardTarget) discovered() discover.Target {
	e := f.endpoint
	id := resolve.ID{
		Addr: e.Addr, ServerName: e.ServerName, Identity: e.Identity, Authority: e.Authority, OpaquePort: e.OpaquePort,
		PingInterval: e.PingInterval, PingTimeout: e.PingTimeout,
	}
	switch e.Protocol {
	case profiles.H2Protocol:
		id.Protocol = resolve.H2
	case profiles.OpaqueProtocol:
		id.Protocol = resolve.Opaque
	case profiles.UnknownProtocol:
	}
	return discover.Target{Name: f.target, Endpoint: resolve.Endpoint{ID: id, Weight: e.Weight, Labels: e.Labels}}
}

// balanced returns e, which rejects requests while it is not ready, so that the balancer
// picks another endpoint.
func balanced(e *httplayer.Endpoint) httplayer.Service { return e }

// byVersion sends each request to the client of its HTTP version.
type byVersion struct {
	h1, h2 version
}

type version struct {
	svc  httplayer.Service
	used atomic.Bool
}

// Ready waits for all versions that are in use, because a request of a version
// that is not ready would be rejected again and again.
func (b *byVersion) Ready(ctx context.Context) error {
	for _, v := range []*version{&b.h1, &b.h2} {
		if v.used.Load() {
			if err := v.svc.Ready(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *byVersion) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	v := &b.h1
	if req.ProtoMajor >= 2 && len(req.Header["Upgrade"]) == 0 && req.Method != http.MethodConnect {
		v = &b.h2
	}
	if !v.used.Load() {
		v.used.Store(true)
	}
	return v.svc.Call(ctx, req)
}

// Describe shows the clients of the versions that are in use.
func (b *byVersion) Describe() layer.Node {
	n := layer.Node{Name: "by version"}
	for _, v := range []*version{&b.h1, &b.h2} {
		if v.used.Load() {
			n.Children = append(n.Children, layer.Describe(v.svc))
		}
	}
	return n
}
