package tap

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// exchange sends the events of one request and its response to the watchers, and counts
// the request in the rows of Top. It is the [layer.Observer] of the response. The parts
// of an event are allocated at most twice for all watchers, with and without fields.
type exchange[Req, Rsp any] struct {
	access Accessor[Req, Rsp]
	ctx    context.Context //nolint:containedctx // the request's; read when a response ends
	req    Req
	common Event // the fields that all events share
	start  time.Time

	recipients     []recipient // the watchers that see the request
	firstRecipient [1]recipient
	rows           []*row // of the counters
	firstRow       [1]*row
	bodied         bool // a watcher asks for bodies

	// returned reports whether Call has returned or panicked. The Observer counts the
	// body from then on, because layers above may replace it.
	returned bool

	init        eventPart[RequestInit]
	rsp         Rsp
	responded   time.Time // zero until there are response headers
	status      int       // of the response
	response    eventPart[ResponseInit]
	headStatus  string // grpc-status of the response headers
	bytes       atomic.Uint64
	explanation []layer.Node // nil until a watcher requests it
	secrets     []string     // texts of the request that an explanation must not show
}

// eventPart is a part of an event in two forms. withFields is nil if no watcher requested fields.
type eventPart[T any] struct{ withoutFields, withFields *T }

func (m *eventPart[T]) of(fields bool) *T {
	if fields && m.withFields != nil {
		return m.withFields
	}
	return m.withoutFields
}

func newExchange[Req, Rsp any](access Accessor[Req, Rsp], ctx context.Context, req Req, v *view) *exchange[Req, Rsp] { //nolint:revive,lll // access is the receiver
	x := &exchange[Req, Rsp]{access: access, ctx: ctx, req: req, common: v.common, start: time.Now()}
	x.recipients, x.rows = x.firstRecipient[:0], x.firstRow[:0]
	return x
}

// show sends the RequestInit to w and makes w a recipient. If the event does not fit
// into the buffer of w, w does not see the request.
func (x *exchange[Req, Rsp]) show(w *watcher) {
	if w.fields && x.init.withFields == nil {
		x.init.withFields = new(*x.init.withoutFields)
		x.init.withFields.Headers = x.requestFields(w.reg)
	}
	e := x.common
	e.RequestInit = x.init.of(w.fields)
	s := recipient{watcher: w}
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
	x.recipients = append(x.recipients, s)
}

// readRequest keeps a part of the request body, at this offset, for the watchers.
func (x *exchange[Req, Rsp]) readRequest(at int64, p []byte) {
	x.eachBody(func(b *bodies) { b.request.take(at, p) })
}

func (x *exchange[Req, Rsp]) readResponse(at int64, p []byte) {
	x.eachBody(func(b *bodies) { b.response.take(at, p) })
}

func (x *exchange[Req, Rsp]) eachBody(f func(*bodies)) {
	for i := range x.recipients {
		if b := x.recipients[i].bodies; b != nil {
			f(b)
		}
	}
}

// respond sends the ResponseInit of rsp.
func (x *exchange[Req, Rsp]) respond(rsp Rsp) {
	x.rsp, x.responded, x.status = rsp, time.Now(), x.access.Status(rsp)
	head := x.access.ResponseHeader(rsp)
	// Read now, because other layers may change the headers before the end.
	x.headStatus = head.Get("grpc-status")
	if len(x.recipients) == 0 {
		return
	}
	x.response.withoutFields = &ResponseInit{SinceRequestInit: x.responded.Sub(x.start), Status: x.status}
	for i := range x.recipients {
		s := &x.recipients[i]
		if s.fields && x.response.withFields == nil {
			x.response.withFields = new(*x.response.withoutFields)
			x.response.withFields.Headers = x.responseFields(s.reg, rsp, head)
		}
		if s.bodies != nil {
			s.bodies.response.contentType = contentType(head)
		}
		e := x.common
		e.ResponseInit = x.response.of(s.fields)
		s.respond(e)
	}
}

// deferredResponse is called if Call returned a response before its headers arrived.
// The headers have arrived now.
func (x *exchange[Req, Rsp]) deferredResponse() { x.respond(x.rsp) }

// responseStarted is called when response headers are sent before Call returns.
func (x *exchange[Req, Rsp]) responseStarted(rsp Rsp) {
	if !x.returned {
		x.respond(rsp)
	}
}

// responseData counts n bytes of a response body that are sent before Call returns. p
// has the bytes, or is nil.
func (x *exchange[Req, Rsp]) responseData(n int, p []byte) {
	if x.returned {
		return
	}
	end := x.bytes.Add(uint64(n))
	switch {
	case !x.bodied:
	case p != nil:
		x.readResponse(int64(end)-int64(n), p)
	default:
		x.eachBody(func(b *bodies) { b.response.markCut() })
	}
}

// Data implements [layer.Observer]. It counts n bytes of the response body.
func (x *exchange[Req, Rsp]) Data(n int) { x.bytes.Add(uint64(n)) }

// End implements [layer.Observer]. It sends the ResponseEnd.
func (x *exchange[Req, Rsp]) End(err error) {
	if x.respondToError(err) {
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

// respondToError sends the ResponseInit of the response that err represents. It returns
// false if err is nil or represents no response.
func (x *exchange[Req, Rsp]) respondToError(err error) bool {
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

// callFailed sends the remaining events after Call returned err.
func (x *exchange[Req, Rsp]) callFailed(err error) {
	if x.respondToError(err) {
		x.End(nil)
		return
	}
	x.endWithoutResponse(err)
}

// endWithoutResponse sends the ResponseEnd if Call returned no response. A nil err
// means that Call panicked. A response that started before is shown as reset.
func (x *exchange[Req, Rsp]) endWithoutResponse(err error) {
	end := &ResponseEnd{Bytes: x.bytes.Load(), ResetCode: resetCode(x.ctx, err)}
	if end.ResetCode == nil && !x.responded.IsZero() {
		end.ResetCode = abortCode(x.ctx)
	}
	x.finish(end, nil)
}

// finish completes end, sends it to all watchers and counts the request.
func (x *exchange[Req, Rsp]) finish(end *ResponseEnd, trailer layer.Header) {
	now := time.Now()
	end.SinceRequestInit = now.Sub(x.start)
	if !x.responded.IsZero() && len(x.recipients) > 0 {
		end.SinceResponseInit = new(now.Sub(x.responded))
	}
	parts := eventPart[ResponseEnd]{withoutFields: end}
	for i := range x.recipients {
		s := &x.recipients[i]
		if s.fields && trailer != nil && parts.withFields == nil {
			parts.withFields = new(*end)
			parts.withFields.Trailers = s.reg.capture(nil, trailer)
		}
		x.sendEnd(s, parts.of(s.fields))
	}
	for _, r := range x.rows {
		r.end(end, x.status, now)
	}
}

// sendEnd sends end to one watcher, after the events that were held.
func (x *exchange[Req, Rsp]) sendEnd(s *recipient, end *ResponseEnd) {
	end = x.withExtras(s, end)
	if s.held != nil && (!s.release(s.outcome.holds(x.status, end)) || !x.sendHeld(s)) {
		return
	}
	e := x.common
	e.ResponseEnd = end
	s.send(e)
	s.watcher.leave()
}

// sendHeld sends the events that were held. It returns false if the first one does not
// fit into the buffer.
func (x *exchange[Req, Rsp]) sendHeld(s *recipient) bool {
	e := x.common
	e.RequestInit = x.init.of(s.fields)
	if !s.send(e) {
		s.watcher.leave()
		return false
	}
	if x.response.withoutFields != nil {
		e = x.common
		e.ResponseInit = x.response.of(s.fields)
		s.send(e)
	}
	return true
}

// withExtras returns end with the bodies and the explanation that s requested.
func (x *exchange[Req, Rsp]) withExtras(s *recipient, end *ResponseEnd) *ResponseEnd {
	if s.bodies == nil && !s.explain {
		return end
	}
	extended := *end
	if s.bodies != nil {
		extended.RequestBody, extended.ResponseBody = s.bodies.request.body(), s.bodies.response.body()
	}
	if s.explain {
		if x.explanation == nil {
			x.explanation = x.choices()
		}
		extended.Explanation = x.explanation
	}
	return &extended
}
