package tcplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/gotower/gotower/internal/left"
	"github.com/gotower/gotower/layer"
)

// Protocols are the servers that [Detect] chooses from. Where HTTP1 or HTTP2 is
// nil, Opaque serves that protocol too; where Opaque is nil, what it would have
// to serve is reset.
type Protocols struct {
	HTTP1, HTTP2, Opaque Server
}

// Detect is the [Server] that looks at the first bytes of a client, and gives the
// connection to the server of their protocol, see [DetectProtocol]. It looks at the
// first line, up to 1 024 bytes and for up to 10 s ([WithDetectTimeout]). A line that
// has not ended then, and may be a request line, is HTTP/1. One that the client
// ends by closing its side is opaque.
//
// A client that sends nothing in that time is opaque ([WithSilentProtocol]), because the
// server may speak first. What it sends later is not looked at, as in linkerd's
// proxy: HTTP that begins after that time is forwarded as it is, with any identity
// headers that the client wrote into it. [WithSkipDetect]
// saves a known protocol of that kind the wait.
//
// The server that is chosen reads everything from the first byte. On Linux a
// TCP connection comes to it as it was accepted, since the kernel lets its bytes
// be seen without taking them; any other comes in a wrapper that gives back what
// was read, with half-close and the kernel's copying kept.
//
// Admission: that of the server that is chosen. A refusal leaves the connection
// open and unread; where that cannot be, since bytes were taken, it is reset, and
// the error is none of kind [layer.ErrNotReady]. Ready waits until one of the
// servers is.
//
// Cancellation: ctx ends the wait for the first byte, too. The connection is
// reset then.
//
// Body: a read deadline that the connection had is gone afterwards.
//
// Errors: those of the server; or a [layer.Error] with [layer.ErrNoRoute], or
// [io.ErrUnexpectedEOF] from a client that left without a word.
//
// Cost: 1 KiB and two system calls for each connection.
func Detect(to Protocols, opts ...DetectOption) Server {
	d := &detect{to: to, detectOptions: newDetectOptions(opts)}
	d.choice = newChoice(to.HTTP1, to.HTTP2, to.Opaque)
	return d
}

// most is what Detect looks at, as linkerd's proxy does.
const most = 1 << 10

type detect struct {
	choice
	detectOptions
	to Protocols
}

func (d *detect) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	switch {
	case ctx.Err() != nil:
		return ByteCount{}, gone(ctx, "detect")
	case d.skips(ctx, conn):
		return d.give(ctx, conn, conn, Opaque)
	}
	enough := func(seen []byte) bool {
		_, final := protocolOf(seen)
		return final
	}
	start := time.Now()
	first, next, err := look(ctx, conn, glance{most: most, within: d.timeout, enough: enough})
	protocol := DetectProtocol(first)
	if len(first) > 0 && errors.Is(err, io.EOF) {
		protocol, err = Opaque, nil // the line never ends
	}
	d.meters.record(ctx, start, protocol, err)
	switch {
	case err == nil:
	case ctx.Err() == nil && lateness(err):
		if len(first) == 0 {
			protocol = d.silent
		}
	case errors.Is(err, io.EOF):
		_ = conn.Close()
		return ByteCount{}, &layer.Error{Layer: "detect", Reason: "the client left without a word", Err: io.ErrUnexpectedEOF}
	default:
		reset(conn)
		return ByteCount{}, &layer.Error{Layer: "detect", Reason: "no first byte", Err: err}
	}
	return d.give(ctx, conn, next, protocol)
}

func (d *detect) give(ctx context.Context, conn, next net.Conn, p Protocol) (ByteCount, error) {
	svc := d.to.Opaque
	switch {
	case p == HTTP1 && d.to.HTTP1 != nil:
		svc = d.to.HTTP1
	case p == HTTP2 && d.to.HTTP2 != nil:
		svc = d.to.HTTP2
	}
	return handOver(ctx, "detect", svc, conn, next)
}

// Describe shows the servers.
func (d *detect) Describe() layer.Node {
	return d.describe("detect", []string{"http1", "http2", "opaque"}, d.to.HTTP1, d.to.HTTP2, d.to.Opaque)
}

// gone is the refusal of a connection whose context is done.
func gone(ctx context.Context, at string) error {
	return &layer.Error{Layer: at, Kind: layer.ErrNotReady, Reason: left.Why(ctx), Err: context.Cause(ctx)}
}

// handOver has next, which is conn after somebody looked at it, served by svc.
func handOver(ctx context.Context, at string, svc Server, conn, next net.Conn) (ByteCount, error) {
	if svc == nil {
		reset(next)
		return ByteCount{}, &layer.Error{Layer: at, Kind: layer.ErrNoRoute, Reason: "nothing serves such connections"}
	}
	t, err := svc.Call(ctx, next)
	if errors.Is(err, layer.ErrNotReady) && spent(conn, next) {
		return t, spentError(at, next, err)
	}
	return t, err
}

// spent reports whether bytes of conn are in wrappers that next has and conn
// has not.
func spent(conn, next net.Conn) bool {
	holders, _ := conn.(*front)
	for {
		f, ok := next.(*front)
		switch {
		case !ok || f == holders:
			return false
		case f.took:
			return true
		}
		next = f.Conn
	}
}

// spentError resets a connection that was refused after something was read of
// it, and returns the error for that. It matches nothing that err does: who
// was given the connection cannot give it to somebody else.
func spentError(at string, conn net.Conn, err error) error {
	reset(conn)
	return &layer.Error{Layer: at, Reason: "refused after its first bytes were read", Err: &lateRefusalError{err}}
}

// lateRefusalError has the text of a refusal, and is none.
type lateRefusalError struct{ refusal error }

func (e *lateRefusalError) Error() string { return e.refusal.Error() }
