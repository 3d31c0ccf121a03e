package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Connections shows the connections that a [tcplayer.Service] makes to the
// watchers of [Registry.Watch] and [Watch]:
//
//	tap.Connections(reg, tap.WithDestination(addr, labels))(tcplayer.NewEndpoint(ctx, addr))
//
// A connection shows an Open, and a Close when it is closed. A failed dial
// shows only a Close. Connections from before the watcher are not shown.
// Conditions on addresses, labels and routes apply when a connection is made. A
// condition on HTTP matches no connection. Failures matches a connection with
// an error, and SlowerThan its duration. With either, Open and Close are sent
// at the end. Observe and Top ignore connections.
//
// Admission: Ready is forwarded.
//
// Cancellation: a dial that fails because its ctx ended is not shown. A
// connection does not end with ctx.
//
// Body: a watched connection is wrapped, to count its bytes. The wrapper has
// CloseWrite, ReadFrom, WriteTo and NetConn, so that the kernel still copies
// between two TCP connections.
//
// Errors: forwarded.
//
// Cost: one atomic load for each connection without watchers. Each Read and
// Write of a watched connection costs an atomic addition.
//
// The default direction is [Outbound], and the default destination the remote
// address.
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
	return c.watched(ctx, req)
}

func (c *connecting) watched(ctx context.Context, req tcplayer.Request) (net.Conn, error) {
	began := time.Now()
	conn, err := c.Service.Call(ctx, req)
	present := c.reg.active.Load()
	if present == nil || err == nil && conn == nil || err != nil && ctx.Err() != nil {
		return conn, err
	}
	v := contact{ctx: ctx, place: c.place, source: plain(req.Client), destination: c.place.destination}
	if !v.destination.IsValid() && conn != nil {
		v.destination = addrOf(conn.RemoteAddr())
	}
	x := v.look(present)
	switch {
	case x == nil:
		return conn, err
	case err != nil:
		x.start = began
		x.close(time.Now(), 0, 0, err.Error())
		return conn, err
	}
	x.open(time.Now())
	if x.unseen() {
		return conn, nil
	}
	return &watchedConn{Conn: conn, contact: x}, nil
}

// Next returns the inner service, for [layer.Describe].
func (c *connecting) Next() tcplayer.Service { return c.Service }

// Describe is that of a [Layer].
func (c *connecting) Describe() layer.Node { return c.reg.brief() }

// Accepted shows the connections that a [tcplayer.Server] serves: an Open
// before Call, and a Close with its error after it. Connections are not
// wrapped. The byte counts are those of the Server.
//
//	tcplayer.Serve(ctx, listener, tap.Accepted(reg)(tcplayer.Forward(to)))
//
// Cost: one atomic load for each connection without watchers.
//
// The default direction is [Inbound], the source the remote address and the
// default destination the local address.
func Accepted(reg *Registry, opts ...Option) layer.Layer[net.Conn, tcplayer.ByteCount] {
	if reg == nil {
		reg = new(Registry)
	}
	place := newPlace(append([]Option{Inbound}, opts...))
	return func(next tcplayer.Server) tcplayer.Server { return &accepting{next, reg, place} }
}

type accepting struct {
	tcplayer.Server
	reg   *Registry
	place *place
}

func (a *accepting) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	present := a.reg.active.Load()
	if present == nil || ctx.Err() != nil {
		return a.Server.Call(ctx, conn)
	}
	v := contact{ctx: ctx, place: a.place, source: addrOf(conn.RemoteAddr()), destination: a.place.destination}
	if !v.destination.IsValid() {
		v.destination = addrOf(conn.LocalAddr())
	}
	x := v.look(present)
	if x == nil {
		return a.Server.Call(ctx, conn)
	}
	x.open(time.Now())
	why := "the server panicked" // or ended its goroutine
	var t tcplayer.ByteCount
	defer func() { x.close(time.Now(), uint64(max(t.Sent, 0)), uint64(max(t.Received, 0)), why) }()
	t, err := a.Server.Call(ctx, conn)
	if why = ""; err != nil {
		why = err.Error()
	}
	return t, err
}

// Next returns the inner server, for [layer.Describe].
func (a *accepting) Next() tcplayer.Server { return a.Server }

// Describe is that of a [Layer].
func (a *accepting) Describe() layer.Node { return a.reg.brief() }

// brief returns the node of Describe without the watchers.
func (r *Registry) brief() layer.Node {
	n := r.Describe()
	n.Children = nil
	return n
}

// addrOf is not valid for an address that is not one of IP.
func addrOf(a net.Addr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	if tcp, ok := a.(*net.TCPAddr); ok {
		return plain(tcp.AddrPort())
	}
	addr, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return plain(addr)
}

// watchedConn counts what goes over a connection until its holder closes it.
type watchedConn struct {
	net.Conn
	contact        *connection
	sent, received atomic.Int64

	mu      sync.Mutex
	copies  int       // running copies of the kernel, whose bytes count when they end
	why     string    // the first thing that broke it
	readEnd bool      // the peer's end was read
	ended   time.Time // when its holder closed it; zero before that
	told    bool
}

// copyPatience is how long the end waits for copies that were under way. They
// end with the connection, unless they wait for the other one.
const copyPatience = time.Second

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	if err != nil {
		c.broke(err)
	}
	return n, err
}

func (c *watchedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	if err != nil {
		c.broke(err)
	}
	return n, err
}

// ReadFrom sends what r gives, until its end.
func (c *watchedConn) ReadFrom(r io.Reader) (int64, error) {
	c.copying(1)
	defer c.copying(-1)
	n, err := io.Copy(c.Conn, r)
	c.sent.Add(n)
	if err != nil {
		c.broke(err)
	}
	return n, err
}

// WriteTo copies to w until the end of the peer.
func (c *watchedConn) WriteTo(w io.Writer) (int64, error) {
	c.copying(1)
	defer c.copying(-1)
	n, err := io.Copy(w, c.Conn)
	c.received.Add(n)
	if err == nil {
		c.broke(io.EOF)
	} else {
		c.broke(err)
	}
	return n, err
}

// CloseWrite closes the sending direction. It completes the handshake of TLS
// before, because TLS cannot close during it.
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

// NetConn returns the connection below.
func (c *watchedConn) NetConn() net.Conn { return c.Conn }

func (c *watchedConn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended.IsZero() {
		return err
	}
	c.ended = time.Now()
	if c.why == "" && !c.readEnd && errors.Is(err, net.ErrClosed) {
		c.why = "reset on this side" // closed below, which is how one does that
	}
	if c.copies > 0 {
		time.AfterFunc(copyPatience, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.tell()
		})
		return err
	}
	c.tell()
	return err
}

// copying counts copies.
func (c *watchedConn) copying(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.copies += n
	if c.copies == 0 && !c.ended.IsZero() {
		c.tell()
	}
}

// broke keeps the first error that is neither an orderly end nor caused by the
// holder.
func (c *watchedConn) broke(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(err, io.EOF):
		c.readEnd = true
	case errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe), errors.Is(err, os.ErrDeadlineExceeded):
	case c.why == "":
		c.why = err.Error()
	}
}

// tell reports the end of the connection once. It is called with mu held.
func (c *watchedConn) tell() {
	if c.told {
		return
	}
	c.told = true
	c.contact.close(c.ended, uint64(c.sent.Load()), uint64(c.received.Load()), c.why)
}

// contact is a connection as conditions see it.
type contact struct {
	ctx                 context.Context //nolint:containedctx // a contact lives as long as the look
	place               *place
	source, destination netip.AddrPort
}

// look returns the connection for the watchers that match it, or nil.
func (v *contact) look(present *audience) *connection {
	var x *connection
	route := layer.RouteFromContext(v.ctx)
	draw, drawn := 0.0, false
	for _, w := range present.watchers {
		if !w.connections || w.full() || w.limited() {
			continue
		}
		if w.sample > 0 {
			if !drawn {
				draw, drawn = w.reg.draw(), true
			}
			if draw >= w.sample {
				continue
			}
		}
		if !v.meets(w.match, route) {
			continue
		}
		if x == nil {
			x = v.connection(route)
		}
		x.seats = append(x.seats, seat{watcher: w})
	}
	return x
}

// draw is a number from 0 to 1.
func (r *Registry) draw() float64 {
	if r.random != nil {
		return r.random()
	}
	return rand.Float64()
}

// meets is holds for a connection, of which there is less to see.
func (v *contact) meets(c *condition, route *layer.Route) bool {
	switch c.op {
	case opAll, opAny:
		for i := range c.subs {
			if v.meets(&c.subs[i], route) == (c.op == opAny) {
				return c.op == opAny
			}
		}
		return c.op == opAll
	case opNot:
		return !v.meets(&c.subs[0], route)
	case opSource:
		return c.address(v.source)
	case opDestination:
		return c.address(v.destination)
	case opDestinationLabel:
		return v.place.destinationLabels[c.key] == c.text
	case opRouteLabel:
		return route != nil && route.Labels[c.key] == c.text
	default:
		return false
	}
}

func (v *contact) connection(route *layer.Route) *connection {
	x := &connection{common: Event{
		Direction:         v.place.direction,
		Source:            v.source,
		Destination:       v.destination,
		SourceLabels:      v.place.sourceLabels,
		DestinationLabels: v.place.destinationLabels,
	}}
	if route != nil {
		if x.common.RouteLabels = route.Labels; x.common.RouteLabels == nil {
			x.common.RouteLabels = map[string]string{}
		}
	}
	x.seats = x.first[:0]
	return x
}

// connection is a connection, or a failed dial, for its watchers.
type connection struct {
	common Event
	start  time.Time // when it was made, or when that was tried
	opened bool
	seats  []seat
	first  [1]seat // room for one watcher without another allocation
}

// open sends the Open event. A watcher without room for it does not see the
// connection. A watcher with a condition on the outcome sees it at the end.
func (x *connection) open(now time.Time) {
	x.start, x.opened = now, true
	kept := x.seats[:0]
	for _, s := range x.seats {
		if s.outcome == nil && !x.enter(&s) {
			continue
		}
		kept = append(kept, s)
	}
	x.seats = kept
}

// enter gives s a place in the stream of its watcher, and sends the Open.
func (x *connection) enter(s *seat) bool {
	var ok bool
	if s.stream, ok = s.watcher.enter(); !ok {
		return false
	}
	if !x.opened {
		return true
	}
	e := x.common
	e.Open = &ConnectionOpen{}
	if !s.send(e) {
		s.leave()
		return false
	}
	return true
}

func (x *connection) unseen() bool { return len(x.seats) == 0 }

// close sends the Close event. It is called once.
func (x *connection) close(now time.Time, sent, received uint64, why string) {
	end := &ConnectionClose{SinceOpen: now.Sub(x.start), Sent: sent, Received: received, Err: why}
	for i := range x.seats {
		s := &x.seats[i]
		if s.outcome != nil && !s.outcome.closes(end) {
			continue
		}
		if (s.outcome != nil || !x.opened) && !x.enter(s) {
			continue
		}
		e := x.common
		e.Close = end
		s.send(e)
		s.leave()
	}
}

// closes is holds for a connection: it has no status of any kind.
func (o *outcome) closes(end *ConnectionClose) bool {
	return o.hi == 0 && len(o.statuses) == 0 && (!o.failures || end.Err != "") && end.SinceOpen > o.slower
}
