package message

import (
	"context"
	"net"
	"net/http/httptrace"
	"time"
)

// Trace calls the hooks in an [httptrace.ClientTrace]. The zero value calls none.
type Trace struct{ hooks *httptrace.ClientTrace }

// TraceOf returns the Trace of a request with the context ctx.
func TraceOf(ctx context.Context) Trace { return Trace{httptrace.ContextClientTrace(ctx)} }

// IsZero reports whether t contains no hooks, so that preparing their arguments can be skipped.
func (t Trace) IsZero() bool { return t.hooks == nil }

// Context returns ctx with t's hooks, so that a [net.Dialer] calls those for DNS and TCP.
func (t Trace) Context(ctx context.Context) context.Context {
	if t.hooks == nil {
		return ctx
	}
	return httptrace.WithClientTrace(ctx, t.hooks)
}

// GetConn calls the hook GetConn, if there is one. Call it before a request to addr gets a
// connection.
func (t Trace) GetConn(addr string) {
	if t.hooks != nil && t.hooks.GetConn != nil {
		t.hooks.GetConn(addr)
	}
}

// GotConn calls the hook of that name, if the request has one. The engines call GotConn when the request has got a
// connection. If idle is positive, the connection was unused for that time.
func (t Trace) GotConn(conn net.Conn, reused bool, idle time.Duration) {
	if t.hooks != nil && t.hooks.GotConn != nil {
		t.hooks.GotConn(httptrace.GotConnInfo{Conn: conn, Reused: reused, WasIdle: idle > 0, IdleTime: idle})
	}
}

// PutIdleConn calls its hook, if there is one, when an HTTP/1.1 connection becomes idle, or is closed because of err.
func (t Trace) PutIdleConn(err error) {
	if t.hooks != nil && t.hooks.PutIdleConn != nil {
		t.hooks.PutIdleConn(err)
	}
}

// WroteHeaders calls its hook, if there is one, after the headers of a request were sent.
func (t Trace) WroteHeaders() {
	if t.hooks != nil && t.hooks.WroteHeaders != nil {
		t.hooks.WroteHeaders()
	}
}

// WroteRequest calls its hook, if there is one, after a request was sent, or after err ended the sending.
func (t Trace) WroteRequest(err error) {
	if t.hooks != nil && t.hooks.WroteRequest != nil {
		t.hooks.WroteRequest(httptrace.WroteRequestInfo{Err: err})
	}
}

// Wait100Continue calls its hook, if there is one, before a request body waits for 100 Continue.
func (t Trace) Wait100Continue() {
	if t.hooks != nil && t.hooks.Wait100Continue != nil {
		t.hooks.Wait100Continue()
	}
}

// Got100Continue calls its hook, if there is one, when 100 Continue has arrived.
func (t Trace) Got100Continue() {
	if t.hooks != nil && t.hooks.Got100Continue != nil {
		t.hooks.Got100Continue()
	}
}

// GotFirstResponseByte calls its hook, if there is one, when the first byte of the response has arrived.
func (t Trace) GotFirstResponseByte() {
	if t.hooks != nil && t.hooks.GotFirstResponseByte != nil {
		t.hooks.GotFirstResponseByte()
	}
}
