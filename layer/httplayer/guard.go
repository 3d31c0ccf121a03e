package httplayer

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
)

// Guard keeps request smuggling out: it stands between connections and a
// net/http server, follows the HTTP/1 that clients send, and cuts what two
// parsers could read in two ways. net/http alone is a lenient reader: it takes
// Content-Length beside Transfer-Encoding, folded fields, lines that end with LF
// alone, Transfer-Encoding in HTTP/1.0 and chunk extensions of any form.
//
//	client ── conn ── Guard ── net/http server ── Handler ── Endpoint ── upstream
//	                   │
//	                   └ every byte read once; framing followed, nothing kept
//
// Of what passes there is only one reading, which net/http shares; [Handler]
// and [Endpoint] then write each request anew, with one framing.
//
// Requests before the one that offends are answered first, undisturbed. That
// one net/http answers with 400, and no handler sees it; if the offence is in a
// chunked body that a handler reads already, reading fails, and the handler
// answers. Then the connection is closed. [GuardReason] lists what offends. It is
// stricter than the RFCs where parsers are known to disagree: lengths and codings
// with a tab or with white space behind them, equal lengths twice, codings beside
// chunked, underscores in the names of framing fields, white space around chunk
// sizes.
//
// HTTP/2 with prior knowledge passes, from its preface on. So does everything
// behind a request for an upgrade or CONNECT once a handler has hijacked its
// connection; what was sent together with it is kept until that is known, and is
// a next request if the handler does not.
//
// net/http recognizes TLS by the type of a connection. A [tls.Conn] in a guard
// is served as cleartext is: no HTTP/2 by ALPN, and no Request.TLS.
//
// Cost: 150 bytes for each connection, 632 more once a target was absolute; one
// pass over heads and chunk sizes, 0.3 to 0.8 µs for a head, and none over the
// data of bodies; no allocation for a request but the first with an absolute target.
// Deadlines are those of the connection, so the server's timeouts hold.
//
// A Guard starts nothing and is safe for concurrent use.
type Guard struct {
	log   *slog.Logger
	lax   bool // HostMismatch is none
	to    [guardReasons]metrics.Counter
	count [guardReasons]atomic.Int64
}

// GuardOption sets how a [Guard] tells what it does.
type GuardOption interface{ apply(g *Guard) }

type guardOption func(*Guard)

func (f guardOption) apply(g *Guard) { f(g) }

// WithGuardCounter counts connections that were cut, by the label "reason"; see
// [GuardReason].
func WithGuardCounter(c metrics.Counter) GuardOption {
	return guardOption(func(g *Guard) {
		for r := range g.to {
			g.to[r] = c.With("reason", GuardReason(r).String())
		}
	})
}

// WithGuardLogger logs connections that were cut at level Warn. Repeated messages are
// limited as those of [WithLogger] are. The default, and nil, is silence.
func WithGuardLogger(l *slog.Logger) GuardOption {
	return guardOption(func(g *Guard) { g.log = l })
}

// WithHostMismatch lets an absolute target pass whose Host names another host, and
// has the target count: so RFC 9112, section 3.2.2, wants it of a proxy. It is right
// where requests go on by a [Handler], which says the host of the target, and
// nowhere what Host said. The default is to cut such a connection: who looks at
// the bytes, as a log or a filter before this, may see the other host.
func WithHostMismatch() GuardOption {
	return guardOption(func(g *Guard) { g.lax = true })
}

// NewGuard returns a Guard for any number of listeners and connections.
func NewGuard(opts ...GuardOption) *Guard {
	g := &Guard{}
	WithGuardCounter(discard.NewCounter()).apply(g)
	for _, opt := range opts {
		if opt != nil {
			opt.apply(g)
		}
	}
	g.log = limitedLog(g.log)
	return g
}

// Rejected returns how many connections were cut for the given reason.
func (g *Guard) Rejected(r GuardReason) int64 {
	if r >= guardReasons {
		return 0
	}
	return g.count[r].Load()
}

// Listener returns l with every connection guarded, to be given to Serve of an
// [http.Server].
func (g *Guard) Listener(l net.Listener) net.Listener { return &guardListener{l, g} }

type guardListener struct {
	net.Listener
	guard *Guard
}

func (l *guardListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.guard.Conn(conn), nil
}

// Conn returns conn guarded, for a net/http server. It owns conn: closing it
// closes conn. Its method NetConn returns conn.
//
// Reads are one at a time, as net/http's are. SetDeadline with no time is how
// net/http begins to hand a connection to who hijacks it, and ends the guard.
func (g *Guard) Conn(conn net.Conn) net.Conn {
	c := &guardConn{Conn: conn, guard: g}
	c.scan.step, c.scan.lax = (*guardScan).preface, g.lax
	return c
}

func (g *Guard) cut(err *GuardError) {
	g.count[err.Reason].Add(1)
	g.to[err.Reason].Add(1)
	g.log.LogAttrs(context.Background(), slog.LevelWarn, "connection cut",
		slog.Any("client", err.Remote), slog.String("reason", err.Reason.String()), slog.Int64("offset", err.Offset))
}
