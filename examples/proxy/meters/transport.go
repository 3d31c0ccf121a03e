package meters

import (
	"maps"
	"net/netip"
	"strings"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/multi"

	"github.com/gotower/gotower/layer/tcplayer"
)

// Peer is the other end of a proxy's connection: a client or a server.
type Peer string

// Source is a client, and Destination is a server.
const (
	Source      Peer = "src"
	Destination Peer = "dst"
)

// Transport contains the instruments for tcplayer.NewMeter, which counts connections.
type Transport = tcplayer.Instruments

// transportFamilies contains the metrics tcp_*, which count connections and their bytes.
type transportFamilies struct {
	opened, closed, read, written *family[*counterValue]
	open                          *family[*gaugeValue]
}

// transportFamilies makes the metrics for connections.
func (m *Meters) transportFamilies() transportFamilies {
	return transportFamilies{
		opened:  m.counters("tcp_open_total", "Total count of opened connections"),
		open:    m.gauges("tcp_open_connections", "Number of currently-open connections"),
		read:    m.counters("tcp_read_bytes_total", "Total count of bytes read from peers"),
		written: m.counters("tcp_write_bytes_total", "Total count of bytes written to peers"),
		closed:  m.counters("tcp_close_total", "Total count of closed connections"),
	}
}

// Transport returns the instruments that count connections with the given labels, [Target] and one
// of [ServerTLS], [ClientTLS] and [NoTLS]. The number of series is limited as in [Meters.Endpoint].
// Bytes on outbound connections to endpoints also count in outbound_tcp_transfer_cost_bytes_total,
// by the label dst_zone_locality.
func (m *Meters) Transport(d Direction, peer Peer, labels Labels) Transport {
	t := m.transport(d, peer, m.peerLabels(d, peer, labels))
	if d == Outbound && peer == Destination {
		// Linkerd counts traffic by zone, because traffic between zones costs money.
		t.Read = multi.NewCounter(t.Read, m.cost("Recv", labels["dst_zone_locality"]))
		t.Written = multi.NewCounter(t.Written, m.cost("Send", labels["dst_zone_locality"]))
	}
	return t
}

// peerLabels returns a labelSet for labels. Only a limited number of label sets get series of their
// own. Beyond the limit, outbound connections with an authority share the authority's series,
// without target_* and dst_pod. The number of these authorities is limited too, and all further
// connections share series with only tls and no_tls_reason. Labels with neither authority nor
// target_addr are not limited.
func (m *Meters) peerLabels(d Direction, peer Peer, labels Labels) labelSet {
	authority := labels["authority"]
	// Labels without an authority or address are chosen by the proxy and not by clients, so they are few.
	switch {
	case authority == "" && labels["target_addr"] == "":
		return fixed(labels)
	// Inbound connections are limited by all of their labels, because clients choose several of them.
	case d == Inbound || authority == "":
		return m.limited(peers(d, peer), labels.key(), labels, onlyTLS)
	}
	// Outbound ones keep the authority beyond the limit, and lose what differs between its endpoints.
	return m.limited(peers(d, peer), authority+" "+labels["target_addr"], labels, func(labels Labels) labelSet {
		maps.DeleteFunc(labels, func(name, _ string) bool { return strings.HasPrefix(name, "target_") || name == "dst_pod" })
		return m.limited(routeParents(d), authority, labels, onlyTLS)
	})
}

// peers returns the kind of name by which [Meters.limited] limits the series of connections.
func peers(d Direction, peer Peer) string { return string(d) + " " + string(peer) }

// onlyTLS removes all labels except tls and no_tls_reason from labels, and returns the rest.
func onlyTLS(labels Labels) labelSet {
	maps.DeleteFunc(labels, func(name, _ string) bool { return name != "tls" && name != "no_tls_reason" })
	return fixed(labels)
}

// cost returns a counter in outbound_tcp_transfer_cost_bytes_total. op is "Recv" or "Send".
// locality is the value of the label dst_zone_locality.
func (m *Meters) cost(op, locality string) metrics.Counter {
	zone := "Unknown"
	switch strings.ToLower(locality) {
	case "local":
		zone = "Local"
	case "remote":
		zone = "Remote"
	}
	return counter{m.transferCost.eager(fixed(Labels{"op": op, "zone_locality": zone}))}
}

// transport returns the instruments that count connections with the labels l, direction and peer.
func (m *Meters) transport(d Direction, peer Peer, l labelSet) Transport {
	f := m.conns
	l = l.with(Labels{"direction": string(d), "peer": string(peer)})
	return Transport{
		Opened:  counter{f.opened.lazy(l)},
		Open:    gauge{f.open.lazy(l)},
		Read:    counter{f.read.lazy(l)},
		Written: counter{f.written.lazy(l)},
		Closed:  closedConnections{newLabelled(f.closed, l, "errno")},
	}
}

// closedConnections counts closed connections. Add counts one that ended without an error, and
// With("errno", e).Add one that ended with the error e.
type closedConnections struct{ labelled }

// Add counts a connection that ended without an error, whose errno is "".
func (c closedConnections) Add(delta float64) { c.get("").Add(delta) }

// Client describes an inbound connection's client for metrics.
type Client struct {
	Secure  bool   // the client uses TLS that this proxy terminates
	ID      string // the identity that the client has proven, or ""
	Passed  bool   // TLS is forwarded to the application unchanged
	Skipped bool   // TLS was not detected, because the server may speak first
}

// Labels returns the labels that describe the connection's TLS, see [ClientTLS] and [NoTLS]. TLS
// that is forwarded unchanged has tls="opaque".
func (c Client) Labels() Labels {
	// The order matters: without TLS at this proxy, the reason tells what happened to the client's TLS.
	switch {
	case c.Secure:
		return ClientTLS(c.ID)
	case c.Passed:
		return Labels{"tls": "opaque"}
	case c.Skipped:
		return NoTLS("port_skipped")
	}
	return NoTLS("no_tls_from_remote")
}

// anonymous returns c without the identity.
func (c Client) anonymous() Client {
	c.ID = ""
	return c
}

// Clients returns a function that returns the meter for a connection from c to target. Call it for
// each connection. The meter counts in the same metrics as [Meters.Transport], with the peer
// [Source]. If server is not zero, [Server]'s labels are added.
//
// After a thousand different sets of labels, further series lack target_*, srv_port and client_id.
// The function is safe for concurrent use.
func (m *Meters) Clients(d Direction) func(target netip.AddrPort, c Client, server Resource) *tcplayer.Meter {
	// The key is cheap to compare, unlike labels, and finds the meter of a repeated client.
	type key struct {
		target netip.AddrPort
		client Client
		server Resource
	}
	meters := newLookup(func(k key) *tcplayer.Meter {
		labels := Target(k.target).With(k.client.Labels())
		// Beyond the limit, clients and ports are not told apart.
		rest := k.client.anonymous().Labels()
		if k.server != (Resource{}) {
			labels = labels.With(Server(k.server, k.target))
			rest = rest.With(Server(k.server, netip.AddrPort{}))
		}
		limited := m.limited(string(d)+" clients", labels.key(), labels, func(Labels) labelSet { return fixed(rest) })
		return tcplayer.NewMeter(m.transport(d, Source, limited))
	})
	return func(target netip.AddrPort, c Client, server Resource) *tcplayer.Meter {
		return meters.get(key{target, c, server})
	}
}

// detectFamilies contains the metrics of protocol detection for one direction.
type detectFamilies struct {
	durations *family[*histogramValue]
	results   *family[*counterValue]
}

// detectFamilies makes the metrics for the detection of protocols in one direction.
func (m *Meters) detectFamilies(d Direction) detectFamilies {
	name := string(d) + "_tcp_detect_http_"
	return detectFamilies{
		durations: m.histograms(name+"duration_seconds", "Time taken for protocol detection.", 0.001, 0.1),
		results:   m.counters(name+"results_total", "Protocol detection results."),
	}
}

// Detect returns the instruments for tcplayer.Detect. The metrics are
// inbound_tcp_detect_http_duration_seconds and inbound_tcp_detect_http_results_total, or their
// outbound counterparts. They have the given labels, and the second one also has the label result.
func (m *Meters) Detect(d Direction, labels Labels) tcplayer.DetectInstruments {
	return m.detect(d, fixed(labels))
}

func (m *Meters) detect(d Direction, l labelSet) tcplayer.DetectInstruments {
	f := m.detects[d]
	return tcplayer.DetectInstruments{Latency: seconds{f.durations.eager(l)}, Results: newLabelled(f.results, l, "result")}
}
