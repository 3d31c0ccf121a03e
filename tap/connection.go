package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Connections returns a layer that shows a [tcplayer.Service]'s connections to the watchers of
// [Registry.Watch] and [Watch]:
//
//	tap.Connections(reg, tap.WithDestination(addr, labels))(tcplayer.NewEndpoint(ctx, addr))
//
// A connection causes an Open event, and a Close event when it is closed. A failed dial causes
// only a Close event. Conditions on HTTP match no connection. A watcher with the condition
// Failures or SlowerThan gets both events when the connection is closed. Observe and Top do not
// show connections. The default direction is [Outbound], and the default destination is the
// remote address.
//
// Admission: Ready is forwarded.
//
// Cancellation: a dial that fails because its ctx ended is not shown.
//
// Body: the bytes of a watched connection are counted, so the kernel cannot splice them.
//
// Errors: forwarded.
//
// Cost: one atomic load for each connection without watchers.
func Connections(reg *Registry, opts ...Option) layer.Layer[tcplayer.Request, net.Conn] {
	if reg == nil {
		reg = new(Registry)
	}
	place := newPlace(append([]Option{Outbound}, opts...))
	return func(next tcplayer.Service) tcplayer.Service { return &connecting{next, reg, place} }
}

// connecting is the service that [Connections] makes: it dials with the service below and shows the
// connection to watchers.
type connecting struct {
	tcplayer.Service
	reg   *Registry
	place *place
}

// Call makes a connection and shows it to the watchers that it matches.
func (c *connecting) Call(ctx context.Context, req tcplayer.Request) (net.Conn, error) {
	if c.reg.active.Load() == nil {
		return c.Service.Call(ctx, req)
	}
	began := time.Now()
	conn, err := c.Service.Call(ctx, req)
	// Watchers may have come or gone during the dial.
	present := c.reg.active.Load()
	// Nobody watches any more, a layer returned neither a connection nor an error, or the caller gave up.
	if present == nil || err == nil && conn == nil || err != nil && ctx.Err() != nil {
		return conn, err
	}
	v := view{isConnection: true}
	c.place.fill(ctx, &v.common, req.Client)
	if !v.common.Destination.IsValid() && conn != nil {
		v.common.Destination = normalizeAddr(caller.Addr(conn.RemoteAddr()))
	}
	x := c.findWatchers(&v, present, began)
	if x == nil {
		return conn, err
	}
	if present.explain {
		// The empty Replacer keeps the texts, because a connection has no secret headers.
		x.explanation = shownNodes(layer.PickInfoFromContext(ctx).Explanation.Choices(), strings.NewReplacer())
	}
	if err != nil {
		x.close(0, 0, err.Error())
		return conn, err
	}
	// If no watcher has to learn of the end, the connection needs no wrapper.
	if x.open(); len(x.recipients) == 0 {
		return conn, nil
	}
	return &watchedConn{Conn: conn, shown: x}, nil
}

// Next returns the inner service, for [layer.Describe].
func (c *connecting) Next() tcplayer.Service { return c.Service }

// Describe returns a node that tells how many watchers the registry has and how many events were
// dropped.
func (c *connecting) Describe() layer.Node { return c.reg.summary() }

// watchedConn wraps a connection that at least one watcher sees. It counts the bytes and remembers the
// first error for the Close event.
type watchedConn struct {
	net.Conn
	shown          *connection
	sent, received atomic.Uint64         // numbers of bytes
	once           sync.Once             // for the Close event
	broken         atomic.Pointer[error] // the first error; nil if there was none
}

// Read reads from the connection, counts the bytes, and remembers the first error.
func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(uint64(n))
	c.failed(err)
	return n, err
}

// Write writes to the connection, counts the bytes, and remembers the first error.
func (c *watchedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(uint64(n))
	c.failed(err)
	return n, err
}

// failed records err if it is the connection's first error. It ignores io.EOF, and also the
// errors after closing or a deadline, because the connection's user causes them.
func (c *watchedConn) failed(err error) {
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, io.ErrClosedPipe), errors.Is(err, os.ErrDeadlineExceeded):
	default:
		c.broken.CompareAndSwap(nil, &err)
	}
}

// CloseWrite closes the sending direction. A TLS handshake is completed first, because crypto/tls
// cannot close one direction during the handshake. It returns [errors.ErrUnsupported] if the
// wrapped connection does not support CloseWrite.
func (c *watchedConn) CloseWrite() error {
	if secure, ok := c.Conn.(interface{ Handshake() error }); ok {
		if err := secure.Handshake(); err != nil {
			return err
		}
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("close one direction of %T: %w", c.Conn, errors.ErrUnsupported)
}

// errReset is the reason of a connection that its user resets.
var errReset = errors.New("reset: the other side failed or was canceled")

// SetLinger makes Close report a reset if sec is 0, because [tcplayer.Forward] resets a connection when
// the one of the client fails. Nothing else is set: callers do that for the connection below.
func (c *watchedConn) SetLinger(sec int) error {
	if sec == 0 {
		c.failed(errReset)
	}
	return nil
}

func (c *watchedConn) NetConn() net.Conn { return c.Conn }

// Close closes the connection and reports its end to the watchers, once.
func (c *watchedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		reason := ""
		if first := c.broken.Load(); first != nil {
			reason = (*first).Error()
		}
		c.shown.close(c.sent.Load(), c.received.Load(), reason)
	})
	return err
}

// connection is a shown connection, or failed dial, with the watchers that get events about it.
type connection struct {
	common     Event
	start      time.Time // start of the dial; after a successful dial, the time of its end
	opened     bool      // the connection was made
	recipients []recipient

	explanation []layer.Node // for the recipients that request it
}

// findWatchers returns the connection with the watchers whose conditions v meets, or nil if there is
// none.
func (c *connecting) findWatchers(v *view, present *audience, began time.Time) *connection {
	// x stays nil until the first watcher is found, because most connections have none.
	var x *connection
	d := draw{reg: c.reg}
	for _, w := range present.watchers {
		if !w.connections || !w.admits(&d) || !w.match.holds(v) {
			continue
		}
		if x == nil {
			x = &connection{common: v.common, start: began}
		}
		x.recipients = append(x.recipients, recipient{watcher: w})
	}
	return x
}

// open sends the Open event. Watchers with a condition on the outcome get it later, from close, because
// the outcome is not known yet. A watcher to which the event cannot be sent, for example because its
// buffer is full, gets no further events.
func (x *connection) open() {
	x.start, x.opened = time.Now(), true
	kept := x.recipients[:0]
	for _, s := range x.recipients {
		if s.outcome != nil || s.start(x.opening()) {
			kept = append(kept, s)
		}
	}
	x.recipients = kept
}

// opening returns the event that tells that the connection was made.
func (x *connection) opening() Event {
	e := x.common
	e.Open = &ConnectionOpen{}
	return e
}

// close sends the Close event, and ends the connection for all recipients. Those with a condition on
// the outcome get the Open event first, or nothing if the outcome does not meet it. A failed dial has
// no Open event. reason is the text of the first error, or "". close is called once.
func (x *connection) close(sent, received uint64, reason string) {
	end := ConnectionClose{SinceOpen: time.Since(x.start), Sent: sent, Received: received, Err: reason}
	explained := end
	explained.Explanation = x.explanation
	for i := range x.recipients {
		s, e := &x.recipients[i], x.common
		if e.Close = &end; s.explain {
			e.Close = &explained
		}
		switch {
		case s.outcome != nil && !s.outcome.holdsForConnection(e.Close):
			continue
		case !x.opened: // Close is the only event
			if s.start(e) {
				s.leave()
			}
			continue
		case s.outcome != nil && !s.start(x.opening()): // the Open event could not be sent
			continue
		}
		s.send(e)
		s.leave()
	}
}

// holdsForConnection reports whether the outcome of a connection meets the condition o. end is its
// Close event. A condition on an HTTP or gRPC status is never met.
func (o *outcome) holdsForConnection(end *ConnectionClose) bool {
	return o.hi == 0 && len(o.statuses) == 0 && (!o.failures || end.Err != "") && end.SinceOpen > o.slower
}
