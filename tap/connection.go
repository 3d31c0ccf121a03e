package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Connections shows the connections that a [tcplayer.Service] makes to the watchers of
// [Registry.Watch] and [Watch]:
//
//	tap.Connections(reg, tap.WithDestination(addr, labels))(tcplayer.NewEndpoint(ctx, addr))
//
// A connection causes an Open event, and a Close event when it is closed. A failed dial
// causes only a Close. Conditions on HTTP match no connection. With the conditions
// Failures or SlowerThan, Open and Close are sent at the end. Observe and Top ignore
// connections. Defaults are the direction [Outbound] and the remote address.
//
// Admission: Ready is forwarded.
//
// Cancellation: a dial that fails because its ctx ended is not shown.
//
// Body: a watched connection is wrapped to count its bytes. This process copies them,
// without the help of the kernel (splice).
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

type connecting struct {
	tcplayer.Service
	reg   *Registry
	place *place
}

func (c *connecting) Call(ctx context.Context, req tcplayer.Request) (net.Conn, error) {
	if c.reg.active.Load() == nil {
		return c.Service.Call(ctx, req)
	}
	began := time.Now()
	conn, err := c.Service.Call(ctx, req)
	present := c.reg.active.Load()
	if present == nil || err == nil && conn == nil || err != nil && ctx.Err() != nil {
		return conn, err
	}
	x := &connection{common: c.place.event(ctx, req.Client), start: began}
	if !x.common.Destination.IsValid() && conn != nil {
		x.common.Destination = normalizeAddr(caller.Addr(conn.RemoteAddr()))
	}
	x.findWatchers(c.reg, present)
	if err != nil {
		x.close(0, 0, err.Error())
		return conn, err
	}
	if x.open(); len(x.recipients) == 0 {
		return conn, nil
	}
	return &watchedConn{Conn: conn, shown: x}, nil
}

// Next returns the inner service, for [layer.Describe].
func (c *connecting) Next() tcplayer.Service { return c.Service }

// Describe returns the number of watchers and of dropped events.
func (c *connecting) Describe() layer.Node { return c.reg.summary() }

// watchedConn counts the bytes of a connection and keeps its first error.
type watchedConn struct {
	net.Conn
	shown          *connection
	sent, received atomic.Uint64
	once           sync.Once
	broken         atomic.Pointer[error]
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(uint64(n))
	c.failed(err)
	return n, err
}

func (c *watchedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(uint64(n))
	c.failed(err)
	return n, err
}

// failed records the first error that is neither the end of the stream nor caused by
// the user of the connection, such as a deadline.
func (c *watchedConn) failed(err error) {
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, io.ErrClosedPipe), errors.Is(err, os.ErrDeadlineExceeded):
	default:
		c.broken.CompareAndSwap(nil, &err)
	}
}

// CloseWrite closes the sending direction. A TLS handshake is completed first, because
// crypto/tls cannot close a direction during the handshake.
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

// NetConn returns the wrapped connection.
func (c *watchedConn) NetConn() net.Conn { return c.Conn }

func (c *watchedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		why := ""
		if first := c.broken.Load(); first != nil {
			why = (*first).Error()
		}
		c.shown.close(c.sent.Load(), c.received.Load(), why)
	})
	return err
}

// connection sends the events of a connection, or of a failed dial, to its watchers.
type connection struct {
	common     Event
	start      time.Time // start of the dial, or of the open connection
	opened     bool
	recipients []recipient
}

// findWatchers adds the watchers that match the connection as recipients.
func (x *connection) findWatchers(reg *Registry, present *audience) {
	v, d := view{common: x.common}, draw{reg: reg}
	for _, w := range present.watchers {
		if w.connections && w.admits(&d) && w.match.holds(&v) {
			x.recipients = append(x.recipients, recipient{watcher: w})
		}
	}
}

// open sends the Open event. A watcher whose buffer has no room for it does not see the
// connection. A watcher with a condition on the outcome gets the event in close.
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

func (x *connection) opening() Event {
	e := x.common
	e.Open = &ConnectionOpen{}
	return e
}

// close sends the Close event with the text of the first error. It is called once.
func (x *connection) close(sent, received uint64, why string) {
	e := x.common
	e.Close = &ConnectionClose{SinceOpen: time.Since(x.start), Sent: sent, Received: received, Err: why}
	for i := range x.recipients {
		s := &x.recipients[i]
		switch {
		case s.outcome != nil && !s.outcome.holdsForConnection(e.Close):
			continue
		case !x.opened:
			if s.start(e) {
				s.leave()
			}
			continue
		case s.outcome != nil && !s.start(x.opening()):
			continue
		}
		s.send(e)
		s.leave()
	}
}

// holdsForConnection reports whether a connection that ended like this matches o.
func (o *outcome) holdsForConnection(end *ConnectionClose) bool {
	return o.hi == 0 && len(o.statuses) == 0 && (!o.failures || end.Err != "") && end.SinceOpen > o.slower
}
