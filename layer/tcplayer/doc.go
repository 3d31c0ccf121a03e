// Package tcplayer provides services for TCP connections: an [Endpoint] makes them, a balancer
// chooses an endpoint, and [Serve] and [Forward] serve them.
//
//	listener → Serve → Server … Forward → Service … balancer → Endpoint → dial
//	                     │         │
//	                     │         └ copies both ways until both ends closed
//	                     └ limits, drains, measures connections being served
//
// # Two services
//
// A [Service] makes a connection: it takes a [Request] and returns a net.Conn. Its latency is the
// time to connect. An address that cannot be reached is a rejection, so a balancer tries another
// endpoint without a retry budget. A [layer.Completion] specifies how long a connection counts as
// in flight.
//
// A [Server] serves an accepted net.Conn and returns its [ByteCount] when it is closed. Layers
// such as a limit on open connections belong here.
//
// # Detection in a proxy
//
//	listener → Serve → Transparent → DetectTLS → Detect → your Server, Forward
//	                   │             │           └ HTTP/1, HTTP/2 or opaque, by the first bytes
//	                   │             └ terminates TLS for local names
//	                   └ original destination; no connection to the listener itself
//
// Each of these servers is optional, and the next one receives all bytes. On Linux they only peek
// at the first bytes, so that the kernel can still copy. The original destination
// ([SOOriginalDst], [FixedDst], [ProxyProtocol]) is the connection's LocalAddr, even with TLS and
// in net/http. It is also the Server in a [Request].
//
// # Between two proxies
//
//	Dialer ── TLS ── header ──→ DetectTLS → DetectTransport → a Server that has the header
//
// A [Dialer] connects to the proxy in front of an endpoint. A [TransportHeader] names the port if
// that proxy uses one port for all servers, and [DetectTransport] reads it. A [Meter] counts
// connections and bytes. [ErrorKind] returns linkerd's error label.
//
// # Completion of a connection
//
//	layer.AtReturn[net.Conn]  counts a connection until it is made, as in linkerd's proxy
//	[UntilClosed]             counts a connection until it is closed
//
// You usually pass one of them to balance.WithCompletion or [layer.WithCompletion]. You should
// use UntilClosed to balance long connections. [NewStack] sets it for all its layers:
// ResponseHeaderTimeout then limits the time to connect, Timeout how long the connection lives,
// and Limit the open connections.
//
// With UntilClosed the connection is closed when Call's context ends. Without it, the context
// limits only the time to connect, as in net.Dialer. A layer above UntilClosed must use it too: a
// [layer.Timeout] with layer.AtReturn would close each connection at once.
//
// # Closing
//
// The caller of a Service closes the connection. A Server that admits a connection closes it. If
// one side of a forwarded connection fails, the other side is reset, so that a truncated response
// never looks complete.
//
// TLS in [DetectTLS], [Endpoint] and [Dialer] ends with close_notify. [Forward] and observers of
// [UntilClosed] treat a TCP EOF without it as an error, although Read returns io.EOF. A tls.Conn
// from another package is not checked.
//
// # Panics
//
// See "Panics" in package layer. [Serve] resets the connection of a panic and logs it. A panic in
// a dial function or TLS callback of an [Endpoint] is a failed attempt. A panic while [Forward]
// copies is its Call's error. A [Meter] ignores a panic of an instrument. The methods of an
// accepted net.Conn must not panic.
package tcplayer
