package meters

import (
	"context"
	"net/netip"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/multi"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer/tcplayer"
)

// Peer tells connections of clients from connections to servers.
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
// those of TLS as for Endpoint. The series are shown for the retention time after ctx
// and after the last connection. Bytes of outbound connections to endpoints
// also count in outbound_tcp_transfer_cost_bytes_total, by the label
// dst_zone_locality.
func (m *Meters) Transport(ctx context.Context, d Direction, peer Peer, labels Labels) Transport {
	l, of := m.seriesLease(ctx), &m.backends
	if peer == Source {
		of = &m.sources
	}
	t := m.transport(l, d, peer, m.peers(l, d, of, labels))
	if d == Outbound && peer == Destination {
		t.Read = multi.NewCounter(t.Read, m.cost("Recv", labels["dst_zone_locality"]))
		t.Written = multi.NewCounter(t.Written, m.cost("Send", labels["dst_zone_locality"]))
	}
	return t
}

// cost returns the bytes of outbound_tcp_transfer_cost_bytes_total in one direction
// and one zone. The labels are those of linkerd's proxy.
func (m *Meters) cost(op, locality string) metrics.Counter {
	zone := "Unknown"
	switch locality {
	case "local":
		zone = "Local"
	case "remote":
		zone = "Remote"
	}
	return counter{m.transferCost.bind(m.always, Labels{"op": op, "zone_locality": zone})}
}

func (m *Meters) transport(l *seriesLease, d Direction, peer Peer, labels Labels) Transport {
	f := m.conns
	labels = labels.With(Labels{"direction": string(d), "peer": string(peer)})
	b := binder{l, labels}
	return Transport{
		Opened:  b.counter(f.opened, nil),
		Open:    leasedGauge{gauge{f.open.bind(l, labels)}, l},
		Read:    b.counter(f.read, nil),
		Written: b.counter(f.written, nil),
		Closed:  closed{b.lazy(f.closed, Labels{"errno": ""}), newLabelled("errno", b.counters(f.closed), asItIs)},
	}
}

// closed is labelled; without a label it counts clean ends.
type closed struct {
	clean  metrics.Counter
	failed labelled
}

func (c closed) Add(delta float64) { c.clean.Add(delta) }

func (c closed) With(label ...string) metrics.Counter {
	if label[1] == "" {
		return c.clean
	}
	return c.failed.With(label...)
}

// Client describes the client of a connection.
type Client struct {
	Secure  bool   // its TLS ends at this proxy
	ID      string // its proven identity; "" means none
	Passed  bool   // its TLS is forwarded as it is
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
// default policy; "" means none. Call it for each connection. From the
// thousand-and-first pair of target and client on, the labels target_* and client_id are
// left out. The series are shown for the retention time after the last connection. The
// function is safe for concurrent use.
func (m *Meters) Clients(d Direction, policy string) func(target netip.AddrPort, c Client) *tcplayer.Meter {
	type key struct {
		target netip.AddrPort
		client Client
	}
	counts := newKeyed(m, func(l *seriesLease, k key) *tcplayer.Meter {
		labels := Target(k.target).With(k.client.Labels())
		if policy != "" {
			labels = labels.With(Server(policy, k.target))
		}
		return tcplayer.NewMeter(m.transport(l, d, Source, labels))
	})
	return func(target netip.AddrPort, c Client) *tcplayer.Meter {
		return counts.of(key{target, c}, key{client: c.anonymous()})
	}
}
