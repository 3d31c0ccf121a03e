// Package tcplayer is connections as services: made by an [Endpoint], chosen by
// a balancer, served by [Forward] and [Serve].
//
//	listener → Serve → Server … Forward → Service … balancer → Endpoint → dial
//	                     │         │
//	                     │         └ copies both ways until both ends closed
//	                     └ limits, drains, measures connections being served
//
// # Two services
//
// A [Service] makes connections: it takes a small [Request] and returns a
// net.Conn. A [Server] serves them: it takes an accepted net.Conn and returns
// the [ByteCount] when it is over.
//
// A balancer, a queue and whatever else chooses where a connection goes stand
// in the first. There, Call is the connecting and nothing else. So its latency
// is that of the endpoint and not of what is said later; an address that cannot
// be reached is a refusal, with nothing yet read from the client, and a balancer
// goes elsewhere without a retry budget; and what a connection counts as after
// that is up to a [layer.Completion]. Were serving and connecting one service,
// a balancer would see connections that take an hour.
//
// What is about connections that are there already, such as how many are served
// at a time, stands in the second, where a connection is a request that is over
// when Call returns.
//
// # What a proxy asks first
//
//	listener → Serve → Transparent → DetectTLS → Detect → a Server of yours, Forward
//	                   │             │           └ HTTP/1, HTTP/2 or neither, by its first bytes
//	                   │             └ ends here, if it asks for our name
//	                   └ the address that the client wanted; nothing that is for ourselves
//
// Each is a Server that chooses among others, and each may be left out. What was
// looked at is there to be read again. On Linux it was never taken: the socket
// is handed on as it was accepted, unless it got addresses, and the kernel still
// copies. The address that a client wanted ([SOOriginalDst], [FixedDst],
// [ProxyProtocol]) is the LocalAddr of the connection from there on, through TLS
// and into net/http, and the Server of a [Request].
//
// # From proxy to proxy
//
//	Dialer ── TLS ── header ──→ DetectTLS → DetectTransport → a Server that has the header
//
// A [Dialer] connects to an endpoint of a mesh. Where the proxy of the peer takes
// connections for all its ports at one, a [TransportHeader] inside TLS says which
// is meant, and [DetectTransport] reads it. A [Meter] counts connections and their
// bytes on either side, and [ErrorKind] names what went wrong, as linkerd's proxy
// does both.
//
// # When a connection counts
//
//	layer.AtReturn[net.Conn]  while it is being made, as in linkerd's proxy
//	[UntilClosed]             until it is closed, or broken
//
// Either is given to a balancer as balance.WithCompletion, to a layer as [layer.WithCompletion].
// The first spreads connects, and says nothing of those that stay. The second
// spreads open connections: take it where they are long and their number is
// the load.
//
// Under UntilClosed a connection is closed when the context of its Call ends;
// otherwise that context bounds the connecting alone, as it does in
// net.Dialer. So a layer that ends the context when its response is over must
// hold UntilClosed if one below it does: above such a balancer, a
// [layer.Timeout] that goes by layer.AtReturn, its default here, would close
// each connection at once. [NewStack] gives UntilClosed to all its layers. Its
// HeadTimeout bounds the connecting, its Timeout the connection's life, its
// Limit is on open connections.
//
// To a balancer, an address that cannot be reached is not ready, and a connection
// that breaks while it counts is a failure ([layer.DefaultClassifier]).
//
// # Ends
//
// A connection belongs to who got it from Call, and is closed by that. Whoever
// admits an accepted connection closes it; a refusal leaves it open and unread.
// Where one end of a forwarded connection breaks, the other is reset, not
// closed in good order: nobody takes the half of an answer for all of it.
//
// TLS that [DetectTLS], an [Endpoint] or a [Dialer] made is over when the peer
// says so (close_notify). A peer that only closes TCP, killed or cut off by
// somebody on the way, broke; so did, to [Forward] and to observers of
// [UntilClosed], one that never says it. Who reads such a connection finds io.EOF
// all the same, as crypto/tls has it for HTTP. A tls.Conn of somebody else's
// making does not tell, nor does one in a wrapper without NetConn: its end is
// always one in good order.
//
// # Panics
//
// The rule of package layer holds: see "Panics" there. [Serve] resets a connection
// whose Server panics, and logs that. A panic of a dial function or a TLS callback
// of an [Endpoint] is a failure to connect, and one in a copy of [Forward] is the
// error of its Call. Each is a [layer.PanicError]. A [Meter] drops one of an
// instrument. The methods of an accepted net.Conn must not panic.
package tcplayer
