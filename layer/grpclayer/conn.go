package grpclayer

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/layer"
)

// conn is the connection to one endpoint. It wraps a gRPC SubConn, and is a service that returns
// picks. It is ready while it is connected, and otherwise rejects picks with the connection's
// last error.
type conn struct {
	target, addr string                 // the name of the target and the address of the endpoint, for errors
	sub          balancer.SubConn       // nil if gRPC could not create it
	lost         error                  // the error of a pick if the connection was lost before the call was sent
	health       atomic.Pointer[health] // the current state
	changed      notify.Broadcast       // wakes Ready after a change of state
}

// health is a connection's state, and the error with which picks are rejected in that state.
type health struct {
	state     connState
	rejection *layer.Error // nil if connected; immutable
}

// connState is the state of a connection, as a balancer sees it.
type connState uint8

// The states are in the order of the names in connState.String.
const (
	connecting connState = iota // connecting, and no attempt has failed since the last connection
	connected
	failing // the last attempt failed, and another one follows
	removed // the endpoint was removed, or the connection was shut down
)

// String returns the name of the state for Describe.
func (s connState) String() string {
	return [...]string{"connecting", "connected", "failing", "closed"}[s]
}

// newConn returns the conn of the endpoint addr of target, in the state connecting.
func newConn(target, addr string) *conn {
	c := &conn{target: target, addr: addr}
	c.lost = c.rejection(layer.ErrNotReady, "the connection was lost before the call", nil)
	c.set(connecting, "connecting", nil)
	return c
}

// rejection returns an error that rejects a pick. kind is layer.ErrNotReady or layer.ErrClosed, and
// cause may be nil.
func (c *conn) rejection(kind error, reason string, cause error) *layer.Error {
	return &layer.Error{Layer: "grpc", Target: c.target, Endpoint: c.addr, Kind: kind, Reason: reason, Err: cause}
}

// set changes the state and wakes those that wait for the connection. reason and cause are the text and
// the cause of the error with which picks are rejected from now on.
func (c *conn) set(state connState, reason string, cause error) {
	h := &health{state: state}
	switch state {
	// Only a connected endpoint has no rejection.
	case connected:
	case removed:
		h.rejection = c.rejection(layer.ErrClosed, reason, cause)
	default:
		h.rejection = c.rejection(layer.ErrNotReady, reason, cause)
	}
	c.health.Store(h)
	c.changed.Wake()
}

// state returns the current state of the connection.
func (c *conn) state() connState { return c.health.Load().state }

// observe records the new state s of the SubConn. After a failed attempt to connect, the
// state is failing until the endpoint is connected again, as in gRPC. If the SubConn is
// idle, observe connects it again.
func (c *conn) observe(s balancer.SubConnState) {
	// While failing, Connecting and Idle change nothing: another attempt is not yet a success.
	now := c.state()
	// The order matters: a removed connection stays removed, and a failing one stays failing until it is connected.
	switch {
	case now == removed:
	case s.ConnectivityState == connectivity.Ready:
		c.set(connected, "", nil) // no reason and no cause, because nothing is wrong
	case s.ConnectivityState == connectivity.TransientFailure:
		c.set(failing, "connection failed", withoutChain(s.ConnectionError))
	case s.ConnectivityState == connectivity.Shutdown:
		c.set(removed, "the connection was shut down", nil)
	case now == connected:
		c.set(connecting, "reconnecting", nil)
	}
	// gRPC does not connect an idle SubConn by itself.
	if s.ConnectivityState == connectivity.Idle && now != removed {
		c.sub.Connect()
	}
}

// close makes the connection reject new calls, and lets open calls finish.
func (c *conn) close() {
	// First the state, so that no pick chooses the connection while it is shut down.
	c.set(removed, "the endpoint was removed", nil)
	if c.sub != nil {
		c.sub.Shutdown()
	}
}

// Ready waits until the connection is made or removed, or ctx ends.
func (c *conn) Ready(ctx context.Context) error {
	err := c.changed.Wait(ctx, func() bool { s := c.state(); return s == connected || s == removed })
	h := c.health.Load()
	switch {
	case h.state == removed:
		return h.rejection
	// The connection was made, perhaps at the moment at which ctx ended.
	case err == nil || h.rejection == nil:
		return nil
	}
	// The reason for the wait says more than the end of ctx, so the error has both.
	return c.rejection(err, h.rejection.Reason, h.rejection.Err)
}

// Call returns a pick of this connection, or the reason why it cannot be picked. It sends nothing and
// does not wait.
func (c *conn) Call(ctx context.Context, _ balancer.PickInfo) (*Pick, error) {
	if ctx.Err() != nil {
		return nil, c.rejection(layer.ErrNotReady, ctxreason.Text(ctx), context.Cause(ctx))
	}
	if h := c.health.Load(); h.rejection != nil {
		return nil, h.rejection
	}
	return &Pick{conn: c}, nil
}

// Classifier returns Classify.
func (*conn) Classifier() layer.Classifier[*Pick] { return Classify[*Pick] }

// Describe returns the state, and the last error.
func (c *conn) Describe() layer.Node {
	h := c.health.Load()
	n := layer.Node{Name: "grpc", State: layer.State{{Key: "state", Value: h.state.String()}}}
	if h.rejection != nil && h.rejection.Err != nil {
		n.State = append(n.State, layer.Attr{Key: "error", Value: h.rejection.Err.Error()})
	}
	return n
}

// opaque takes over another error's text, but errors.Is and errors.As do not find that error in
// it. Otherwise a timeout while connecting would look like the end of the caller's deadline.
// Also, another call's status in the error would become this call's status.
type opaque struct{ error }

// withoutChain returns err as an opaque error, or nil if err is nil.
func withoutChain(err error) error {
	if err == nil {
		return nil
	}
	return opaque{err}
}
