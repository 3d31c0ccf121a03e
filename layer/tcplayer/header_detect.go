package tcplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/gotower/gotower/layer"
)

// TransportServers are the servers that [DetectTransport] chooses from. What one
// that is nil would have to serve is reset.
type TransportServers struct {
	Header Server // what begins with a transport header, which is taken away
	None   Server // all else, as it came
}

// DetectTransport is the [Server] that reads the [TransportHeader] of connections
// whose TLS ended here, by a [DetectTLS] above, and on which that was agreed:
// TLS picked [TransportProtocol]. Those go to Header, which finds the header with
// [TransportHeaderFromContext], and what follows it on the connection. If the header has
// no name, the LocalAddr of the connection has its port from there on, so that a
// [Forward] below goes on to it; [OriginalDst] is that, too.
//
// Everything else goes to None, unread: what is in clear, what did not agree, and
// what agreed and then does not begin with a header. It looks at up to 64 KiB. A
// client that has not said enough after 10 s ([WithDetectTimeout]) is reset.
//
// Who the client is, it does not ask: see [TLSState].
//
// Admission: that of the server that is chosen. A refusal leaves the connection
// open and unread if nothing of it was; else it is reset, as in [Detect]. Ready
// waits until one of the servers is.
//
// Cancellation: ctx ends the looking. The connection is reset then.
//
// Body: a read deadline that the connection had is gone afterwards.
//
// Errors: those of the server; or a [layer.Error] with [layer.ErrTimeout],
// [layer.ErrNoRoute], [io.ErrUnexpectedEOF] from a client that left too early, or
// what is wrong with the header.
//
// Cost: about 2 KiB in 14 allocations, and 8 µs, for each connection with
// a header.
func DetectTransport(to TransportServers, opts ...DetectOption) Server {
	return &detectTransport{choice: newChoice(to.Header, to.None), detectOptions: newDetectOptions(opts), to: to}
}

type detectTransport struct {
	choice
	detectOptions
	to TransportServers
}

func (d *detectTransport) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	switch {
	case ctx.Err() != nil:
		return ByteCount{}, gone(ctx, "transport")
	case !agreed(conn) || d.skips(ctx, conn):
		return handOver(ctx, "transport", d.to.None, conn, conn)
	}
	told := func(seen []byte) bool {
		_, _, err := ParseTransportHeader(seen)
		return !errors.Is(err, io.ErrUnexpectedEOF)
	}
	first, next, err := look(ctx, conn, glance{most: headerFixed + mostHeader, within: d.timeout, enough: told})
	h, size, wrong := ParseTransportHeader(first)
	switch {
	case errors.Is(err, io.EOF) && 0 < len(first) && len(first) < len(headerPreface):
		return handOver(ctx, "transport", d.to.None, conn, next)
	case err != nil:
		return ByteCount{}, d.unheard(conn, "transport", "no header", err)
	case errors.Is(wrong, ErrNoTransportHeader):
		return handOver(ctx, "transport", d.to.None, conn, next)
	case wrong == nil:
		_, wrong = io.ReadFull(next, make([]byte, size))
	}
	if wrong != nil {
		reset(conn)
		return ByteCount{}, &layer.Error{Layer: "transport", Reason: "bad header", Err: wrong}
	}
	return handOver(context.WithValue(ctx, headerKey{}, &h), "transport", d.to.Header, conn, headed(next, h))
}

// agreed reports whether a header is to come.
func agreed(conn net.Conn) bool {
	state, ok := TLSState(conn)
	return ok && state.NegotiatedProtocol == TransportProtocol
}

// headed returns conn, from which h was read, as one to where h says.
func headed(conn net.Conn, h TransportHeader) net.Conn {
	f := &front{Conn: conn, took: true}
	if here := addrPort(conn.LocalAddr()); here.IsValid() && h.Name == "" {
		f.server = net.TCPAddrFromAddrPort(netip.AddrPortFrom(here.Addr(), h.Port))
	}
	return f
}

// Describe shows the servers.
func (d *detectTransport) Describe() layer.Node {
	n := d.describe("transport", []string{"header", "none"}, d.to.Header, d.to.None)
	n.State = layer.State{{Key: "timeout", Value: d.timeout.Round(time.Millisecond)}}
	return n
}

type headerKey struct{}

// TransportHeaderFromContext returns the header that a [DetectTransport] above read from
// the connection that is served.
func TransportHeaderFromContext(ctx context.Context) (TransportHeader, bool) {
	h, ok := ctx.Value(headerKey{}).(*TransportHeader)
	if !ok {
		return TransportHeader{}, false
	}
	return *h, true
}
