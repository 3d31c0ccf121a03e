package tap

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// exchange is one request and its response, for its watchers and counters. It is
// the [layer.Observer] of the response. Parts of events are made at most twice,
// with and without fields, for all watchers.
type exchange[Req, Rsp any] struct {
	access Accessor[Req, Rsp]
	ctx    context.Context //nolint:containedctx // the request's; read when a response ends
	req    Req
	common Event // what all events have
	start  time.Time

	seats     []seat // of the watchers
	firstSeat [1]seat
	rows      []*row // of the counters
	firstRow  [1]*row
	bodied    bool // a watcher asks for bodies

	// returned is set when Call has returned or panicked. The body is then
	// observed while it is read, because a layer above may have replaced the
	// response.
	returned bool

	init        made[RequestInit]
	rsp         Rsp
	responded   time.Time // zero until there are response headers
	status      int       // of the response
	response    made[ResponseInit]
	headStatus  string // grpc-status of the response headers
	bytes       atomic.Uint64
	explanation []layer.Node // nil until a watcher needs it
	secrets     []string     // of the request, which an explanation may repeat
}

// made is a part of events without fields, and with fields if a watcher asks
// for them.
type made[T any] struct{ plain, full *T }

func (m *made[T]) of(fields bool) *T {
	if fields && m.full != nil {
		return m.full
	}
	return m.plain
}

func newExchange[Req, Rsp any](access Accessor[Req, Rsp], ctx context.Context, req Req, v *view) *exchange[Req, Rsp] { //nolint:revive // access is the receiver of all
	x := &exchange[Req, Rsp]{access: access, ctx: ctx, req: req, common: v.common, start: time.Now()}
	x.seats, x.rows = x.firstSeat[:0], x.firstRow[:0]
	return x
}

// show sends the RequestInit to w. If it does not fit, w does not see the
// request.
func (x *exchange[Req, Rsp]) show(w *watcher) {
	if w.fields && x.init.full == nil {
		x.init.full = new(*x.init.plain)
		x.init.full.Headers = x.requestFields(w.reg)
	}
	e := x.common
	e.RequestInit = x.init.of(w.fields)
	s := seat{watcher: w}
	if !s.begin(e) {
		return
	}
	if w.explain && x.secrets == nil {
		x.secrets = x.secretsOf(w.reg)
	}
	if w.body > 0 {
		s.bodies = newBodies(w, x.access.RequestHeader(x.req))
		x.bodied = true
	}
	x.seats = append(x.seats, s)
}

// readRequest keeps a part of the request body for the watchers.
func (x *exchange[Req, Rsp]) readRequest(at int64, p []byte) {
	x.eachBody(func(b *bodies) { b.request.take(at, p) })
}

func (x *exchange[Req, Rsp]) readResponse(at int64, p []byte) {
	x.eachBody(func(b *bodies) { b.response.take(at, p) })
}

func (x *exchange[Req, Rsp]) eachBody(f func(*bodies)) {
	for i := range x.seats {
		if b := x.seats[i].bodies; b != nil {
			f(b)
		}
	}
}

// respond sends the ResponseInit.
func (x *exchange[Req, Rsp]) respond(rsp Rsp) {
	x.rsp, x.responded, x.status = rsp, time.Now(), x.access.Status(rsp)
	head := x.access.ResponseHeader(rsp)
	// Read now, because other layers may change the headers before the end.
	x.headStatus = head.Get("grpc-status")
	if len(x.seats) == 0 {
		return
	}
	x.response.plain = &ResponseInit{SinceRequestInit: x.responded.Sub(x.start), Status: x.status}
	for i := range x.seats {
		s := &x.seats[i]
		if s.fields && x.response.full == nil {
			x.response.full = new(*x.response.plain)
			x.response.full.Headers = x.responseFields(s.reg, rsp, head)
		}
		if s.bodies != nil {
			s.bodies.response.contentType = contentType(head)
		}
		e := x.common
		e.ResponseInit = x.response.of(s.fields)
		s.respond(e)
	}
}

// begin sends the ResponseInit of a response that Call returned before it began.
func (x *exchange[Req, Rsp]) begin() { x.respond(x.rsp) }

// begun sends the ResponseInit of a response that begins before Call returns it.
func (x *exchange[Req, Rsp]) begun(rsp Rsp) {
	if !x.returned {
		x.respond(rsp)
	}
}

// early counts a part of the body of such a response.
func (x *exchange[Req, Rsp]) early(n int, p []byte) {
	if x.returned {
		return
	}
	end := x.bytes.Add(uint64(n))
	switch {
	case !x.bodied:
	case p != nil:
		x.readResponse(int64(end)-int64(n), p)
	default:
		x.eachBody(func(b *bodies) { b.response.miss() }) // the bytes are not available
	}
}

// Data counts.
func (x *exchange[Req, Rsp]) Data(n int) { x.bytes.Add(uint64(n)) }

// End sends the ResponseEnd of a response.
func (x *exchange[Req, Rsp]) End(err error) {
	if x.answered(err) {
		err = nil
	}
	end := &ResponseEnd{Bytes: x.bytes.Load(), ResetCode: resetCode(x.ctx, err)}
	status := x.headStatus
	var trailer layer.Header
	// Only a complete response has trailers to read. After a broken one, its
	// reader may still write to them.
	if err == nil {
		trailer = x.access.ResponseTrailer(x.rsp)
		status = cmp.Or(trailer.Get("grpc-status"), status)
	}
	if end.ResetCode == nil {
		end.GRPCStatus = grpcStatus(status)
	}
	x.finish(end, trailer)
}

// answered reports whether err stands for a response, and sends its
// ResponseInit.
func (x *exchange[Req, Rsp]) answered(err error) bool {
	if err == nil {
		return false
	}
	rsp, ok := x.access.ErrorResponse(x.ctx, x.req, err)
	if !ok {
		return false
	}
	x.rsp = rsp
	if x.responded.IsZero() {
		x.respond(rsp)
	}
	return true
}

// broken ends a request after an error of Call.
func (x *exchange[Req, Rsp]) broken(err error) {
	if x.answered(err) {
		x.End(nil)
		return
	}
	x.fail(err)
}

// fail ends a request without a response of Call. A nil err means that Call did
// not return. A response that began before is reset.
func (x *exchange[Req, Rsp]) fail(err error) {
	end := &ResponseEnd{Bytes: x.bytes.Load(), ResetCode: resetCode(x.ctx, err)}
	if end.ResetCode == nil && !x.responded.IsZero() {
		end.ResetCode = abortCode(x.ctx)
	}
	x.finish(end, nil)
}

// finish sends the ResponseEnd to all watchers.
func (x *exchange[Req, Rsp]) finish(plain *ResponseEnd, trailer layer.Header) {
	now := time.Now()
	plain.SinceRequestInit = now.Sub(x.start)
	if !x.responded.IsZero() && len(x.seats) > 0 {
		plain.SinceResponseInit = new(now.Sub(x.responded))
	}
	end := made[ResponseEnd]{plain: plain}
	for i := range x.seats {
		s := &x.seats[i]
		if s.fields && trailer != nil && end.full == nil {
			end.full = new(*plain)
			end.full.Trailers = s.reg.capture(nil, trailer)
		}
		x.leave(s, end.of(s.fields))
	}
	for _, r := range x.rows {
		r.end(plain, x.status)
	}
}

// leave sends the end to one watcher, after the events that were held back.
func (x *exchange[Req, Rsp]) leave(s *seat, end *ResponseEnd) {
	end = x.withExtras(s, end)
	if s.held != nil && (!s.release(s.outcome.holds(x.status, end)) || !x.catchUp(s)) {
		return
	}
	e := x.common
	e.ResponseEnd = end
	s.send(e)
	s.watcher.leave()
}

// catchUp sends the events that were held back. It returns false if the first
// one does not fit.
func (x *exchange[Req, Rsp]) catchUp(s *seat) bool {
	e := x.common
	e.RequestInit = x.init.of(s.fields)
	if !s.send(e) {
		s.watcher.leave()
		return false
	}
	if x.response.plain != nil {
		e = x.common
		e.ResponseInit = x.response.of(s.fields)
		s.send(e)
	}
	return true
}

// withExtras returns end with the bodies and the explanation of s.
func (x *exchange[Req, Rsp]) withExtras(s *seat, end *ResponseEnd) *ResponseEnd {
	if s.bodies == nil && !s.explain {
		return end
	}
	own := *end
	if s.bodies != nil {
		own.RequestBody, own.ResponseBody = s.bodies.request.body(), s.bodies.response.body()
	}
	if s.explain {
		if x.explanation == nil {
			x.explanation = x.choices()
		}
		own.Explanation = x.explanation
	}
	return &own
}
