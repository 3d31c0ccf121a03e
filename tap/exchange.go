package tap

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// exchange is one request and its response, for the watchers that see the
// request. It is the [layer.Observer] of the response. Parts of events are made
// at most twice, with and without fields, for all watchers.
type exchange[Req, Rsp any] struct {
	access layer.Accessor[Req, Rsp]
	answer func(err error) (Rsp, bool) // nil: an error never stands for a response
	ctx    context.Context             //nolint:containedctx // the request's; asked why a response broke off
	common Event                       // what all events have
	seats  []seat
	first  [1]seat // room for one watcher without another allocation
	bodied bool    // one of them wants bodies, and the access can show them

	// returned is set when Call has returned or panicked. The body is then
	// observed while it is read, because a layer above may have replaced the
	// response.
	returned bool

	counted      []*row // in which the request is counted
	firstCounted [1]*row

	start       time.Time
	init        made[RequestInit]
	rsp         Rsp
	responded   time.Time // zero until there are response headers
	response    made[ResponseInit]
	headStatus  string // grpc-status among them
	bytes       atomic.Uint64
	explanation []layer.Node // nil until one is wanted
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

func newExchange[Req, Rsp any](v *view[Req, Rsp]) *exchange[Req, Rsp] {
	x := &exchange[Req, Rsp]{
		access: v.access,
		ctx:    v.ctx,
		start:  time.Now(),
		common: v.event(),
	}
	x.common.SourceLabels = v.sourceLabels()
	x.init.plain = newRequestInit(v)
	x.seats, x.counted = x.first[:0], x.firstCounted[:0]
	x.answer = v.answer()
	return x
}

// newRequestInit copies its strings into one, because they may be small parts
// of a long request line, which events would keep alive.
func newRequestInit[Req, Rsp any](v *view[Req, Rsp]) *RequestInit {
	method, scheme, authority, path := v.method(), v.scheme(), v.authority(), v.path()
	all := method + scheme + authority + path
	next := func(s string) string {
		s, all = all[:len(s)], all[len(s):]
		return s
	}
	return &RequestInit{Method: next(method), Scheme: next(scheme), Authority: next(authority), Path: next(path)}
}

// show sends the RequestInit to w. If it does not fit, w does not see the
// request.
func (x *exchange[Req, Rsp]) show(w *watcher, req Req) {
	if w.fields && x.init.full == nil {
		x.init.full = new(*x.init.plain)
		x.init.full.Headers = x.requestFields(w.reg, req)
	}
	e := x.common
	e.RequestInit = x.init.of(w.fields)
	s := seat{watcher: w}
	if !s.begin(e) {
		return
	}
	if w.explain && x.secrets == nil {
		x.secrets = x.secretsOf(w.reg, req)
	}
	if w.body > 0 {
		s.bodies = newBodies(w, x.access.RequestHeader(req))
		x.bodied = true
	}
	x.seats = append(x.seats, s)
}

// readRequest keeps a part of the request body for the watchers.
func (x *exchange[Req, Rsp]) readRequest(at int64, p []byte) {
	for i := range x.seats {
		if b := x.seats[i].bodies; b != nil {
			b.request.take(at, p)
		}
	}
}

func (x *exchange[Req, Rsp]) readResponse(at int64, p []byte) {
	for i := range x.seats {
		if b := x.seats[i].bodies; b != nil {
			b.response.take(at, p)
		}
	}
}

// missResponse marks the response body as cut, because data was written that is
// not available.
func (x *exchange[Req, Rsp]) missResponse() {
	for i := range x.seats {
		if b := x.seats[i].bodies; b != nil {
			b.response.miss()
		}
	}
}

// respond sends the ResponseInit.
func (x *exchange[Req, Rsp]) respond(rsp Rsp) {
	x.rsp, x.responded = rsp, time.Now()
	head := x.access.ResponseHeader(rsp)
	// Kept for the end: by then other layers may be changing the headers.
	x.headStatus = head.Get("grpc-status")
	x.response.plain = &ResponseInit{SinceRequestInit: x.responded.Sub(x.start), Status: x.access.Status(rsp)}
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

// begin is respond for a response that Call returned before it began.
func (x *exchange[Req, Rsp]) begin() { x.respond(x.rsp) }

// begun is respond for a response that begins before Call returns it.
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
		x.missResponse()
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
		if t := x.access.ResponseTrailer(x.rsp); !isEmpty(t) {
			trailer, status = t, t.Get("grpc-status")
		}
	}
	if end.ResetCode == nil {
		end.GRPCStatus = grpcStatus(status)
	}
	x.finish(end, trailer)
}

// answered reports whether err stands for a response, and sends its
// ResponseInit.
func (x *exchange[Req, Rsp]) answered(err error) bool {
	if err == nil || x.answer == nil {
		return false
	}
	rsp, ok := x.answer(err)
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
	if !x.responded.IsZero() {
		plain.SinceResponseInit = new(now.Sub(x.responded))
	}
	end := made[ResponseEnd]{plain: plain}
	for i := range x.seats {
		s := &x.seats[i]
		if s.fields && trailer != nil && end.full == nil {
			end.full = new(*plain)
			end.full.Trailers = s.reg.capture([]Field{}, trailer)
		}
		x.leave(s, end.of(s.fields))
	}
	for _, r := range x.counted {
		r.end(plain, x.status())
	}
}

// status is 0 where there was no response.
func (x *exchange[Req, Rsp]) status() int {
	if x.response.plain == nil {
		return 0
	}
	return x.response.plain.Status
}

// leave sends the end to one watcher, after the events that were held back.
func (x *exchange[Req, Rsp]) leave(s *seat, end *ResponseEnd) {
	end = x.withExtras(s, end)
	if s.held != nil && (!s.release(s.outcome.holds(x.status(), end)) || !x.catchUp(s)) {
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

// withExtras is end with what s alone asked for, if that is something.
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
