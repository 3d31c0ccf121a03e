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

// peer specifies how the proxy connects to one endpoint. It also has the labels of the
// requests to this endpoint.
type peer struct {
	discover.Target

	tls       *tls.Config               // nil means cleartext
	identity  string                    // the endpoint must prove it; "" without TLS
	authority string                    // replaces the authority of requests; "" means no change
	header    *tcplayer.TransportHeader // sent at the start of a connection; nil means none
	port      uint16                    // of the endpoint's proxy, which expects header; 0: the endpoint's port

	labels     meters.Labels
	tapOptions []tap.Option
}

// peer returns the TLS configuration, the port and the labels for connections to the
// endpoint of t. If the address of the endpoint belongs to this pod, the proxy connects to
// it in cleartext. It then uses the port of the endpoint itself, not the port of a proxy.
func (o *Outbound) peer(t discover.Target) peer {
	e, p := t.Endpoint, peer{Target: t}
	own := slices.Contains(o.Own, e.Addr.Addr().Unmap())
	if !own {
		p.authority, p.port = e.Authority, e.OpaquePort
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

// withProtocol returns a copy of p with the protocol v in the transport header. It returns
// p unchanged if p has no transport header, or if the endpoint receives opaque bytes.
func (p peer) withProtocol(v tcplayer.Protocol) peer {
	if p.announcesProtocol() {
		h := *p.header
		h.Protocol = v
		p.header = &h
	}
	return p
}

// announcesProtocol reports whether each connection to p begins with a transport header
// that contains the HTTP version of the requests. The transport header is the message in
// which linkerd's proxies state the port and the protocol of a connection.
func (p peer) announcesProtocol() bool {
	return p.header != nil && p.Endpoint.Protocol != resolve.Opaque
}

// tapOptions returns the options that label requests to the endpoint of t in tap. The
// labels are those of the endpoint and of the application. The argument secured has the
// metric labels that describe the TLS connection to the endpoint.
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

// dial returns a function that connects to the endpoint of p and counts the connections.
func (o *Outbound) dial(p peer) settings.Dial {
	d := tcplayer.Dialer{
		TLS: p.tls, Header: p.header, Port: p.port, Timeout: o.Connect.Timeout,
		Sockets: o.Connect.Socket.Options(), Deny: o.Refuse, Dial: o.Dial,
	}
	instruments := o.Meters.Transport(meters.Outbound, meters.Destination, p.labels)
	return tcplayer.NewMeter(instruments).WrapDial(d.DialContext)
}

// literalTarget returns target as an endpoint if target is an IP address with a port. The
// second result is false if target is a name.
func literalTarget(target string) (discover.Target, bool) {
	addr, err := netip.ParseAddrPort(target)
	return discover.Target{Name: target, Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: addr}}}, err == nil
}

// forwardTarget is a target, with the single endpoint that its profile specifies. For
// example, the profile of the address of a pod specifies this pod. A forwardTarget can be a
// cache key although it contains a pointer, because equal endpoints of profiles have the
// same pointer.
type forwardTarget struct {
	target   string
	endpoint *profiles.Endpoint
}

func (f forwardTarget) String() string { return f.target + " at " + f.endpoint.String() }

// discovered converts f to a target of package discover.
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

// balanced returns e as the service of an endpoint in a balancer. It adds nothing to e,
// because e rejects requests while it is not ready. The balancer then picks another
// endpoint.
func balanced(e *httplayer.Endpoint) httplayer.Service { return e }

// byVersion is a service with two HTTP clients of one endpoint: h1 for HTTP/1 requests
// and h2 for HTTP/2 requests. A request with an Upgrade header or the method CONNECT uses
// h1.
type byVersion struct {
	h1, h2 version
}

// version is the client of one HTTP version. The field used becomes true at the first
// request with this version.
type version struct {
	svc  httplayer.Service
	used atomic.Bool
}

// Ready waits until each client that has been used is ready. If it waited for only one of
// them, a balancer could pick the endpoint repeatedly for requests that need the other.
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

// Describe shows the clients of the versions with at least one request so far.
func (b *byVersion) Describe() layer.Node {
	n := layer.Node{Name: "by version"}
	for _, v := range []*version{&b.h1, &b.h2} {
		if v.used.Load() {
			n.Children = append(n.Children, layer.Describe(v.svc))
		}
	}
	return n
}
