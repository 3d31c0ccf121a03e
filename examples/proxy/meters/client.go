package meters

import (
	"net/netip"

	"github.com/gotower/gotower/layer/tcplayer"
)

// Client is what is known of who made a connection.
type Client struct {
	Secure  bool   // by TLS that ended here
	ID      string // the identity that it proved by it; "" is none
	Passed  bool   // by TLS that is passed on as it came
	Skipped bool   // nobody looked whether by TLS, as the server may speak first
}

// Labels are those of TLS: see [ClientTLS] and [NoTLS]; what is passed on is
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

// anonymous is c without a name.
func (c Client) anonymous() Client {
	c.ID = ""
	return c
}

// Clients returns what counts the connections of a client to a target, as
// Transport does for [Source], with the labels of [Server] for the default policy;
// "" is none. Ask it for each connection. Of more than a thousand
// targets and clients at a time, further ones are counted without target, and
// without client_id. The series are shown until a while after the last connection
// was closed. The function is safe for concurrent use.
func (m *Meters) Clients(d Direction, policy string) func(target netip.AddrPort, c Client) *tcplayer.Meter {
	type key struct {
		target netip.AddrPort
		client Client
	}
	counts := newKeyed(m, func(l *lease, k key) *tcplayer.Meter {
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
