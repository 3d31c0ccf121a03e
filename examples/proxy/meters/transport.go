package meters

import (
	"net/netip"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/multi"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer/tcplayer"
)

// Peer distinguishes connections of clients from connections to servers.
type Peer string

// The peers.
const (
	Source      Peer = "src"
	Destination Peer = "dst"
)

// Transport are the instruments of connections, see tcplayer.Meter.
type Transport = tcplayer.Instruments

type transportFamilies struct {
	opened, closed, read, written *family[prometheus.Counter]
	open                          *family[prometheus.Gauge]
}

func (m *Meters) transportFamilies() transportFamilies {
	return transportFamilies{
		opened:  m.counters("tcp_open_total", "Total count of opened connections"),
		open:    m.gauges("tcp_open_connections", "Number of currently-open connections"),
		read:    m.counters("tcp_read_bytes_total", "Total count of bytes read from peers"),
		written: m.counters("tcp_write_bytes_total", "Total count of bytes written to peers"),
		closed:  m.counters("tcp_close_total", "Total count of closed connections"),
	}
}

// Transport returns the instruments of connections with these labels: [Target], and
// those of TLS as for Endpoint. The limits are those of Endpoint. Bytes of outbound
// connections to endpoints also count in outbound_tcp_transfer_cost_bytes_total, by the
// label dst_zone_locality.
func (m *Meters) Transport(d Direction, peer Peer, labels Labels) Transport {
	t := m.transport(d, peer, m.peerLabels(d, peer, labels))
	if d == Outbound && peer == Destination {
		t.Read = multi.NewCounter(t.Read, m.cost("Recv", labels["dst_zone_locality"]))
		t.Written = multi.NewCounter(t.Written, m.cost("Send", labels["dst_zone_locality"]))
	}
	return t
}

// outboundBackends is the limit of the outbound targets.
const outboundBackends = "outbound targets"

// peerLabels returns labels, limited by endpoint outbound and by all labels inbound. Only
// those of TLS remain beyond the limit, so that a target with many endpoints does not fill
// the memory.
func (m *Meters) peerLabels(d Direction, peer Peer, labels Labels) labelSet {
	if labels["authority"] == "" && labels["target_addr"] == "" {
		return fixed(labels)
	}
	name := labels["authority"] + " " + labels["target_addr"]
	if d == Inbound {
		name = labels.key()
	}
	rest := Labels{}
	for _, label := range []string{"tls", "no_tls_reason"} {
		if value, ok := labels[label]; ok {
			rest[label] = value
		}
	}
	return m.limited(string(d)+" "+string(peer), name, labels, rest)
}

// cost returns the counter of outbound_tcp_transfer_cost_bytes_total for one direction
// and one zone. Its labels are those of linkerd's proxy.
func (m *Meters) cost(op, locality string) metrics.Counter {
	zone := "Unknown"
	switch locality {
	case "local":
		zone = "Local"
	case "remote":
		zone = "Remote"
	}
	return counter{m.transferCost.now(fixed(Labels{"op": op, "zone_locality": zone}))}
}

func (m *Meters) transport(d Direction, peer Peer, l labelSet) Transport {
	f := m.conns
	l = l.with(Labels{"direction": string(d), "peer": string(peer)})
	return Transport{
		Opened:  counter{f.opened.now(l)},
		Open:    gauge{f.open.now(l)},
		Read:    counter{f.read.now(l)},
		Written: counter{f.written.now(l)},
		Closed:  closedConnections{counter{f.closed.lazy(l.with(Labels{"errno": ""}))}, newLabelled(f.closed, l, "errno")},
	}
}

// closedConnections counts closed connections. Add counts those that ended without an
// error. With("errno", e) counts those that ended with e.
type closedConnections struct {
	clean  metrics.Counter
	failed labelled
}

func (c closedConnections) Add(delta float64) { c.clean.Add(delta) }

func (c closedConnections) With(label ...string) metrics.Counter {
	if label[1] == "" {
		return c.clean
	}
	return c.failed.With(label...)
}

// Client describes the client of a connection.
type Client struct {
	Secure  bool   // this proxy terminates its TLS
	ID      string // its proven identity; "" means no identity
	Passed  bool   // its TLS is forwarded unchanged
	Skipped bool   // TLS was not detected, because the server may speak first
}

// Labels returns the labels of TLS, see [ClientTLS] and [NoTLS]. Forwarded TLS is
// "opaque".
func (c Client) Labels() Labels {
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

// Clients returns a function that returns the meter of a client's connections to a
// target. It counts as Transport does for [Source], with the labels of [Server] for the
// default policy, unless policy is empty. Call it for each connection. The labels target_*
// and client_id are left out for pairs of target and client beyond the first thousand. The
// function is safe for concurrent use.
func (m *Meters) Clients(d Direction, policy string) func(target netip.AddrPort, c Client) *tcplayer.Meter {
	type key struct {
		target netip.AddrPort
		client Client
	}
	meters := newLookup(func(k key) *tcplayer.Meter {
		labels, rest := Target(k.target).With(k.client.Labels()), k.client.anonymous().Labels()
		if policy != "" {
			labels, rest = labels.With(Server(policy, k.target)), rest.With(Server(policy, netip.AddrPort{}))
		}
		return tcplayer.NewMeter(m.transport(d, Source, m.limited(string(d)+" clients", labels.key(), labels, rest)))
	})
	return func(target netip.AddrPort, c Client) *tcplayer.Meter { return meters.of(key{target, c}) }
}

// detectFamilies are the metrics of protocol detection.
type detectFamilies struct {
	durations *family[prometheus.Histogram]
	results   *family[prometheus.Counter]
}

func (m *Meters) detectFamilies(d Direction) detectFamilies {
	name := string(d) + "_tcp_detect_http_"
	return detectFamilies{
		durations: m.histograms(name+"duration_seconds", "Time taken for protocol detection.", 0.001, 0.1),
		results:   m.counters(name+"results_total", "Protocol detection results."),
	}
}

// Detect returns the instruments of tcplayer.Detect with these labels:
// inbound_tcp_detect_http_duration_seconds, inbound_tcp_detect_http_results_total by
// result, and their outbound counterparts.
func (m *Meters) Detect(d Direction, labels Labels) tcplayer.DetectInstruments {
	return m.detect(d, fixed(labels))
}

func (m *Meters) detect(d Direction, l labelSet) tcplayer.DetectInstruments {
	f := m.detects[d]
	return tcplayer.DetectInstruments{Latency: seconds{f.durations.now(l)}, Results: newLabelled(f.results, l, "result")}
}
