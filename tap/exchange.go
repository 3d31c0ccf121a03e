package tap

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// exchange is one request and its response. It exists only if at least one watcher or call of
// Top sees the request. It sends the events to the watchers, and counts the request in the rows
// of Top. It is also the [layer.Observer] of the response body. The watchers share the parts of
// the events, see eventPart.
type exchange[Req, Rsp any] struct {
	access Accessor[Req, Rsp]
	ctx    context.Context //nolint:containedctx // the request's; read when a response ends
	req    Req
	common Event // the fields that all events share
	start  time.Time

	recipients     []recipient // the watchers that see the request
	firstRecipient [1]recipient
	rows           []*row // rows of the calls of Top in which the request is counted
	firstRow       [1]*row
	bodied         bool // whether a watcher requests bodies

	// returned is true after Call has returned or panicked. ResponseData then does nothing,
	// because Data counts the bytes. deferred is true if the response headers arrive after
	// Call. If returned is true and deferred is false, ResponseStarted does nothing.
	returned, deferred bool

	init        eventPart[RequestInit]
	rsp         Rsp
	responded   time.Time // zero until there are response headers
	status      int       // HTTP status of the response, or 0
	response    eventPart[ResponseInit]
	headStatus  string // grpc-status of the response headers
	bytes       atomic.Uint64
	explanation []layer.Node // nil until a watcher requests it
	secrets     []string     // texts of the request that an explanation must not show
}

// eventPart has one part of an event, such as a RequestInit, in two forms: without and with
// header fields. withFields is nil until the event is sent to a watcher that requests
// fields.
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

// show makes w a recipient of the events of the request. It sends the RequestInit, or holds it if
// w has a condition on the outcome. If the RequestInit does not fit into the buffer of w, or w has
// reached its limit or rate, show does not add w. w then gets no event of the request.
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

func (x *exchange[Req, Rsp]) readRequest(offset int64, p []byte) {
	x.eachBody(func(b *bodies) { b.request.take(offset, p) })
}

func (x *exchange[Req, Rsp]) readResponse(offset int64, p []byte) {
	x.eachBody(func(b *bodies) { b.response.take(offset, p) })
}

func (x *exchange[Req, Rsp]) eachBody(f func(*bodies)) {
	for i := range x.recipients {
		if b := x.recipients[i].bodies; b != nil {
			f(b)
		}
	}
}

// respond records the status and the headers of rsp, and sends the ResponseInit to the
// recipients. A recipient with a condition on the outcome gets the event only after the
// request has ended.
func (x *exchange[Req, Rsp]) respond(rsp Rsp) {
	x.rsp, x.responded, x.status = rsp, x.start, x.access.Status(rsp)
	head := x.access.ResponseHeader(rsp)
	// Read now, because other layers may change the headers before the end.
	x.headStatus = head.Get("grpc-status")
	if len(x.recipients) == 0 {
		return // the rows need no time of the headers
	}
	x.responded = time.Now()
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

// ResponseStarted implements [layer.ResponseObserver]. It sends the ResponseInit of rsp. The
// accessor calls ResponseStarted before Call returns if a handler sends the response headers. It
// calls ResponseStarted after Call if the headers of rsp arrive later.
func (x *exchange[Req, Rsp]) ResponseStarted(rsp Rsp) {
	if !x.returned || x.deferred {
		x.respond(rsp)
	}
}

// ResponseData implements [layer.ResponseObserver]. It counts n bytes of the response body that
// a handler sent before Call returned. p has these bytes. If they are not available, p is nil,
// and the bodies that watchers get are marked as cut.
func (x *exchange[Req, Rsp]) ResponseData(n int, p []byte) {
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

// End implements [layer.Observer]. It sends the ResponseEnd. err is nil if the response
// body is complete.
func (x *exchange[Req, Rsp]) End(err error) {
	if x.respondToError(err) {
		err = nil
	}
	end := ResponseEnd{Bytes: x.bytes.Load(), ResetCode: resetCode(x.ctx, err)}
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

// respondToError returns true if err represents a response, such as a gRPC status. It also
// sends the ResponseInit of that response if none has been sent. It returns false if err is
// nil or represents no response.
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

// callFailed sends the ResponseEnd of a request for which Call returned err. If err represents a
// response and no ResponseInit was sent, it sends the ResponseInit first.
func (x *exchange[Req, Rsp]) callFailed(err error) {
	if x.respondToError(err) {
		x.End(nil)
		return
	}
	x.endWithoutResponse(err)
}

// endWithoutResponse sends the ResponseEnd of a request for which Call returned no
// response. err is the error of Call, or nil if Call panicked. If a handler had started a
// response, the event has a reset code.
func (x *exchange[Req, Rsp]) endWithoutResponse(err error) {
	end := ResponseEnd{Bytes: x.bytes.Load(), ResetCode: resetCode(x.ctx, err)}
	if end.ResetCode == nil && !x.responded.IsZero() {
		end.ResetCode = abortCode(x.ctx)
	}
	x.finish(end, nil)
}

// finish sets the durations of the event in the argument end and then sends the event to all
// recipients. Recipients that request fields also get the fields of trailer. finish also records
// the end of the request in the rows of Top.
func (x *exchange[Req, Rsp]) finish(end ResponseEnd, trailer layer.Header) {
	end.SinceRequestInit = time.Since(x.start) // faster than time.Now
	for _, r := range x.rows {
		r.end(&end, x.status, x.start.Add(end.SinceRequestInit))
	}
	if len(x.recipients) == 0 {
		return
	}
	if !x.responded.IsZero() {
		end.SinceResponseInit = new(end.SinceRequestInit - x.responded.Sub(x.start))
	}
	parts := eventPart[ResponseEnd]{withoutFields: new(end)}
	for i := range x.recipients {
		s := &x.recipients[i]
		if s.fields && trailer != nil && parts.withFields == nil {
			parts.withFields = new(end)
			parts.withFields.Trailers = s.reg.capture(nil, trailer)
		}
		x.sendEnd(s, parts.of(s.fields))
	}
}

// sendEnd sends the event in the argument end to the recipient s. If s has a condition on the
// outcome, sendEnd first sends the events that were held. It sends nothing if the outcome does not
// match this condition.
func (x *exchange[Req, Rsp]) sendEnd(s *recipient, end *ResponseEnd) {
	if s.held != nil && (!s.release(s.outcome.holds(x.status, end)) || !x.sendHeld(s)) {
		s.bodies.drop()
		return
	}
	e := x.common
	e.ResponseEnd = x.withExtras(s, end)
	s.send(e)
	s.watcher.leave()
}

// sendHeld sends the held RequestInit, and the ResponseInit if there is one, to the
// recipient s. It returns false if the RequestInit does not fit into the buffer.
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

// withExtras returns a copy of the event in the argument end, with the bodies and the explanation
// that s requests. If s requests neither, it returns the event itself.
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
