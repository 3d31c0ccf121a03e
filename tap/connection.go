package tap

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Connections shows the connections that a [tcplayer.Service] makes, to who
// watches reg by [Registry.Watch] or [Watch]:
//
//	tap.Connections(reg, tap.WithDestination(addr, labels))(tcplayer.NewEndpoint(ctx, addr))
//
// A connection that was made shows an Open, and a Close when its holder closed
// it. One that could not be made shows a Close alone, with the reason, and in
// SinceOpen how long that took. A connection that was there before somebody
// watched is not shown. Which are shown is decided when they were made: by
// addresses, labels and routes. No condition on HTTP holds for a connection. Of
// those on a response, Failures is that something broke it off, and SlowerThan
// is about the time it was open; with one, Open and Close are sent together at
// the end. linkerd's Observe does not know of connections, and Top counts none.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: what could not be made because its caller had gone is not
// shown. The context has no part in when a connection is over.
//
// Body: a connection that is watched is wrapped, to count its bytes: see
// [net.Conn], with CloseWrite, ReadFrom and WriteTo, by which the kernel still
// copies between two TCP connections, and with NetConn. Any other is handed on
// as it is.
//
// Errors: passed as they are.
//
// Cost: one atomic load a connection while nobody watches. A connection that is
// watched is not delayed; each Read and Write costs an atomic addition.
//
// The direction is [Outbound] and the destination the other end, unless options
// say otherwise.
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

// Accepted shows the connections that a [tcplayer.Server] serves, as
// [Connections] does those that are made: an Open when it is given one, a Close
// when it is done with it, which has the reason if it refused. Nothing is
// wrapped; the bytes are those that the server says.
//
//	tcplayer.Serve(ctx, listener, tap.Accepted(reg)(tcplayer.Forward(to)))
//
// Cost: one atomic load a connection while nobody watches.
//
// The direction is [Inbound], the source the other end and the destination this
// one, unless options say otherwise.
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

// brief is Describe without those who watch.
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
