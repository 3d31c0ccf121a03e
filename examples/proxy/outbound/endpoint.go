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
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/tap"
)

// peer specifies how the proxy connects to one endpoint, and the labels for its requests.
type peer struct {
	discover.Target

	tls       *tls.Config               // nil means cleartext
	identity  string                    // the endpoint must prove it; "" without TLS
	authority string                    // replaces the authority of requests; "" means no change
	header    *tcplayer.TransportHeader // sent at the start of a connection; nil means none
	port      uint16                    // where the endpoint's proxy expects header; 0: the endpoint's port
	upgrades  bool                      // the endpoint has a proxy that accepts HTTP/1 over HTTP/2

	labels     meters.Labels
	tapOptions []tap.Option
}

// peer returns how to connect to t's endpoint. An endpoint in this pod is reached in cleartext on
// its own port instead of through a proxy, because that would be this proxy.
func (o *Outbound) peer(t discover.Target) peer {
	e := t.Endpoint
	p := peer{Target: t}
	// An endpoint in this pod has no other proxy in front of it, so its proxy's properties do not apply.
	local := slices.Contains(o.PodIPs, e.Addr.Addr().Unmap())
	if !local {
		p.authority = e.Authority
		p.port = e.OpaquePort
		p.upgrades = e.Protocol == resolve.H2
	}
	// The order matters: the first case is the reason that metrics show for cleartext.
	switch {
	case local:
		p.labels = meters.NoTLS("loopback")
	case e.ServerName == "":
		p.labels = meters.NoTLS("not_provided_by_service_discovery")
	case o.Identity == nil:
		p.labels = meters.NoTLS("disabled")
	default:
		p.identity = e.Identity
		p.tls = o.Identity.Client(e.ServerName, e.Identity)
		p.labels = meters.ServerTLS(e.Identity)
	}
	// Another proxy needs a header if it does not receive the connection on the application's port, or if it has
	// to know the name. The protocol is opaque until withProtocol changes it.
	if p.tls != nil && (p.port != 0 || p.authority != "") {
		p.header = new(tcplayer.NewTransportHeader(e.Addr.Port(), p.authority, tcplayer.Opaque))
	}
	p.tapOptions = o.tapOptions(t, p.labels)
	// The labels for tap above only need those of TLS. Metrics also get the endpoint's.
	p.labels = p.labels.With(meters.Target(e.Addr)).With(meters.Prefixed("dst", e.Labels)).
		With(meters.Labels{"authority": t.Name})
	return p
}

// withProtocol returns a copy of p that announces the protocol v, if p announces one.
func (p peer) withProtocol(v tcplayer.Protocol) peer {
	if p.announcesProtocol() {
		// Copy the header, because other copies of p share it.
		h := *p.header
		h.Protocol = v
		p.header = &h
	}
	return p
}

// announcesProtocol reports whether each connection to p begins with a transport header that
// contains the requests' HTTP version. With a transport header, linkerd's proxies tell each other a
// connection's port and protocol. If the endpoint receives opaque bytes, there is no version to
// announce.
func (p peer) announcesProtocol() bool {
	return p.header != nil && p.Endpoint.Protocol != resolve.Opaque
}

// tapOptions returns the labels for requests to t's endpoint in tap: the endpoint's and the
// application's. secured contains the metric labels for TLS to the endpoint.
func (o *Outbound) tapOptions(t discover.Target, secured meters.Labels) []tap.Option {
	// Clone, because the endpoint's labels are shared.
	labels := maps.Clone(t.Endpoint.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels["tls"] = secured["tls"]
	// In tap, the label tls contains the reason itself.
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
	// The application connects from inside the pod, in cleartext.
	source["tls"] = "loopback"
	return []tap.Option{tap.Outbound, tap.WithSourceLabels(source), tap.WithDestination(t.Endpoint.Addr, labels)}
}

// dial returns a function that connects to p and counts the connections.
func (o *Outbound) dial(p peer) settings.Dial {
	d := tcplayer.Dialer{
		TLS: p.tls, Header: p.header, Port: p.port, Timeout: o.Connect.Timeout,
		Sockets: o.Connect.Socket.Options(), Deny: o.Refuse, Dial: o.Dial,
	}
	instruments := o.Meters.Transport(meters.Outbound, meters.Destination, p.labels)
	return tcplayer.NewMeter(instruments).WrapDial(d.DialContext)
}

// literalTarget converts target, if it is an IP address with a port, to an endpoint. It returns
// false for names.
func literalTarget(target string) (discover.Target, bool) {
	addr, err := netip.ParseAddrPort(target)
	return discover.Target{Name: target, Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: addr}}}, err == nil
}

// forwardTarget is a target with the single endpoint that its profile, or a backend in its profile,
// specifies. The profile of a pod's address is an example. Although it contains a pointer, it can
// be a cache key, because profiles use the same pointer for equal endpoints.
type forwardTarget struct {
	target   string
	endpoint *resolve.Endpoint
}

func (f forwardTarget) String() string { return f.target + " at " + f.endpoint.Addr.String() }

// discovered converts f for package discover.
func (f forwardTarget) discovered() discover.Target {
	return discover.Target{Name: f.target, Endpoint: *f.endpoint}
}

// balanced returns e as an endpoint in a balancer. Nothing needs to be added: an endpoint that is
// not ready rejects requests, and the balancer picks another one.
func balanced(e *httplayer.Endpoint) httplayer.Service { return e }

// byVersion sends requests to one endpoint with two HTTP clients: h1 for HTTP/1, for requests with
// an Upgrade header and for CONNECT, and h2 for all others.
type byVersion struct {
	h1, h2 version
}

// version is the client for one HTTP version.
type version struct {
	svc  httplayer.Service
	used atomic.Bool // after the first request with this version
}

// Ready waits until all clients in use are ready. If it waited for only one, a balancer could pick
// the endpoint again and again for requests that need the other.
func (b *byVersion) Ready(ctx context.Context) error {
	// A version without requests may never become ready, so it must not hold up the endpoint.
	for _, v := range []*version{&b.h1, &b.h2} {
		if v.used.Load() {
			if err := v.svc.Ready(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Call sends the request over the HTTP version that it needs, and notes that this version is used.
func (b *byVersion) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	v := &b.h1
	// Upgrades and CONNECT tunnels need HTTP/1.1.
	if req.ProtoMajor >= 2 && len(req.Header["Upgrade"]) == 0 && req.Method != http.MethodConnect {
		v = &b.h2
	}
	if !v.used.Load() { // avoid a write for each request
		v.used.Store(true)
	}
	return v.svc.Call(ctx, req)
}

// Describe shows the clients, one for each HTTP version, that have received a request.
func (b *byVersion) Describe() layer.Node {
	n := layer.Node{Name: "by version"}
	for _, v := range []*version{&b.h1, &b.h2} {
		if v.used.Load() {
			n.Children = append(n.Children, layer.Describe(v.svc))
		}
	}
	return n
}
