package tap

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// exchange is a request that at least one watcher or call of Top sees, from its start to its end. It
// sends the events to the watchers and counts the request in Top's rows. It is also the
// [layer.Observer] of the response. Watchers with equal wishes share the same event.
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
	record         *layer.Record // has the pattern of an inbound request in rows; else nil
	bodied         bool          // whether a watcher requests bodies

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

// eventPart holds one part of an event, such as a RequestInit, in two forms: without header fields, and
// with them for the watchers that request fields. The second is nil until it is needed.
type eventPart[T any] struct{ withoutFields, withFields *T }

// of returns the form for a watcher that requests fields or does not.
func (m *eventPart[T]) of(fields bool) *T {
	if fields && m.withFields != nil {
		return m.withFields
	}
	return m.withoutFields
}

// newExchange returns an exchange without recipients and rows. A zero arrival means now.
func newExchange[Req, Rsp any](
	access Accessor[Req, Rsp], ctx context.Context, req Req, v *view, arrival time.Time, //nolint:revive // access is the receiver
) *exchange[Req, Rsp] {
	if arrival.IsZero() {
		arrival = time.Now()
	}
	x := &exchange[Req, Rsp]{access: access, ctx: ctx, req: req, common: v.common, start: arrival}
	x.recipients, x.rows = x.firstRecipient[:0], x.firstRow[:0]
	return x
}

// enter returns what the inner service should be called with. It observes the response and the request
// body as far as the recipients need it.
func (x *exchange[Req, Rsp]) enter(ctx context.Context, req Req) (context.Context, Req) {
	x.access.OnResponseStart(ctx, req, x)
	if x.bodied {
		req = x.access.TeeRequestBody(req, x.readRequest)
	}
	if len(x.rows) > 0 && x.common.Direction == Inbound {
		ctx, x.record = layer.WithRecord(ctx) // a mux below may report its pattern
	}
	return ctx, req
}

// result returns what the inner service has returned, and observes it. x may be nil.
func (x *exchange[Req, Rsp]) result(ctx context.Context, rsp Rsp, err error) (Rsp, error) {
	if x == nil {
		return rsp, err
	}
	x.returned = true
	if err != nil {
		x.callFailed(err)
		return rsp, err
	}
	x.rsp = rsp
	if x.responded.IsZero() {
		x.deferred = true // before the headers may arrive
		if !x.access.OnDeferredResponse(rsp, x) {
			x.deferred = false
			x.respond(rsp)
		}
	}
	if x.bodied {
		rsp = x.access.TeeResponseBody(rsp, x.readResponse)
	}
	return x.access.ObserveResponse(ctx, rsp, x), nil
}

// abort ends a request whose inner service did not return, because of a panic or Goexit. It does nothing
// after result. x may be nil.
func (x *exchange[Req, Rsp]) abort() {
	if x != nil && !x.returned {
		x.returned = true
		x.endWithoutResponse(nil)
	}
}

// show makes w a recipient of the request's events. It sends the RequestInit, or holds it if w
// sets a condition on the outcome. If the RequestInit does not fit into w's buffer, or w has
// reached its limit or rate, show does not add w, which then gets no event about the request.
func (x *exchange[Req, Rsp]) show(w *watcher) {
	// The form with fields is made for the first watcher that asks for it, and shared with the others.
	if w.fields && x.init.withFields == nil {
		x.init.withFields = new(*x.init.withoutFields)
		x.init.withFields.Headers = x.requestFields(w.reg)
	}
	e := x.common
	e.RequestInit = x.init.of(w.fields)
	s := recipient{watcher: w}
	// The watcher does not see the request.
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

// readRequest and readResponse keep parts of the bodies for the watchers that request them.
func (x *exchange[Req, Rsp]) readRequest(offset int64, p []byte) {
	x.eachBody(func(b *bodies) { b.request.take(offset, p) })
}

func (x *exchange[Req, Rsp]) readResponse(offset int64, p []byte) {
	x.eachBody(func(b *bodies) { b.response.take(offset, p) })
}

// eachBody calls f for the bodies of each watcher that asked for them.
func (x *exchange[Req, Rsp]) eachBody(f func(*bodies)) {
	for i := range x.recipients {
		if b := x.recipients[i].bodies; b != nil {
			f(b)
		}
	}
}

// respond records that the response has begun, and sends the ResponseInit, except to watchers with a
// condition on the outcome, which get it when the request has ended.
func (x *exchange[Req, Rsp]) respond(rsp Rsp) {
	x.rsp = rsp
	head := x.access.ResponseHeader(rsp)
	// Read now, because other layers may change the headers before the end.
	x.headStatus = head.Get("grpc-status")
	x.begin(x.access.Status(rsp))
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

// begin records that a response with the given status has begun. If watchers see the request, it makes
// the event about the response, to which the header fields are added later.
func (x *exchange[Req, Rsp]) begin(status int) {
	// Any time but zero means that the response has begun. Only watchers need the exact one.
	x.responded, x.status = x.start, status
	if len(x.recipients) == 0 {
		return // the rows need no time of the headers
	}
	x.responded = time.Now()
	x.response.withoutFields = &ResponseInit{SinceRequestInit: x.responded.Sub(x.start), Status: status}
}

// ResponseStarted implements [layer.ResponseObserver]. It sends the ResponseInit for rsp. The
// accessor calls it before Call returns if a handler sends the response headers, and after Call
// if they arrive later.
func (x *exchange[Req, Rsp]) ResponseStarted(rsp Rsp) {
	if !x.returned || x.deferred {
		x.respond(rsp)
	}
}

// ResponseData implements [layer.ResponseObserver]. It counts n response body bytes that a
// handler sent before Call returned. p holds these bytes. If they are not available, p is nil,
// and the bodies that watchers get are marked as cut.
func (x *exchange[Req, Rsp]) ResponseData(n int, p []byte) {
	if x.returned {
		return
	}
	end := x.bytes.Add(uint64(n))
	switch {
	case !x.bodied:
	case p != nil:
		// end is the number of bytes after these, so they begin n bytes before it.
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
	// Only a complete response has trailers to read. After a broken one, they may still be
	// written.
	if err == nil {
		trailer = x.access.ResponseTrailer(x.rsp)
		status = cmp.Or(trailer.Get("grpc-status"), status)
	}
	if end.ResetCode == nil {
		end.GRPCStatus = grpcStatus(status)
	}
	x.finish(end, trailer)
}

// respondToError reports whether err represents a response, as a gRPC status does. If so, it treats
// that as the response, and sends the ResponseInit if none was sent.
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

// callFailed ends a request for which Call returned err. If err represents a response, as a gRPC
// status does, the events show that response.
func (x *exchange[Req, Rsp]) callFailed(err error) {
	if x.respondToError(err) {
		x.End(nil)
		return
	}
	x.endWithoutResponse(err)
}

// endWithoutResponse sends the ResponseEnd of a request for which Call has returned no response. err is
// Call's error, or nil if Call panicked. If a handler had begun a response before, the event carries a
// reset code. If the client has left, the events show the status 499.
func (x *exchange[Req, Rsp]) endWithoutResponse(err error) {
	var left interface {
		error
		StatusCode() int
	}
	// The client has left before the response, so the error stands in for a response with the status 499.
	if x.responded.IsZero() && errors.As(err, &left) && left.StatusCode() == statusLeft {
		x.begin(statusLeft)
		for i := range x.recipients {
			e := x.common
			e.ResponseInit = x.response.withoutFields
			x.recipients[i].respond(e)
		}
	}
	end := ResponseEnd{Bytes: x.bytes.Load(), ResetCode: resetCode(x.ctx, err)}
	// A handler that fails after its headers makes net/http reset the stream.
	if end.ResetCode == nil && !x.responded.IsZero() {
		end.ResetCode = abortCode(x.ctx)
	}
	x.finish(end, nil)
}

// finish completes end with the durations and sends it to all watchers, with the trailer to those that
// request fields. It also ends the request in Top's rows.
func (x *exchange[Req, Rsp]) finish(end ResponseEnd, trailer layer.Header) {
	end.SinceRequestInit = time.Since(x.start) // faster than time.Now
	// A mux below may have reported its pattern, by which Top then counts the request.
	pattern := x.record.Facts().Pattern
	for _, r := range x.rows {
		if pattern != "" {
			r = r.routed(pattern)
		}
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

// sendEnd sends end to the watcher s. If s has a condition on the outcome, sendEnd sends the events
// that were held back before, or nothing if the outcome does not meet the condition.
func (x *exchange[Req, Rsp]) sendEnd(s *recipient, end *ResponseEnd) {
	// A held request is shown only if the outcome matches, and if its earlier events still fit.
	if s.held != nil && (!s.release(s.outcome.holds(x.status, end)) || !x.sendHeld(s)) {
		s.bodies.drop()
		return
	}
	e := x.common
	e.ResponseEnd = x.withExtras(s, end)
	s.send(e)
	s.watcher.leave()
}

// sendHeld sends the events that were held back for s: the RequestInit, and the ResponseInit if there
// was one. It returns false if the RequestInit does not fit into the buffer.
func (x *exchange[Req, Rsp]) sendHeld(s *recipient) bool {
	e := x.common
	e.RequestInit = x.init.of(s.fields)
	if !s.send(e) {
		// For linkerd's Observe, such a request counts toward the limit all the same.
		s.unsent()
		return false
	}
	s.sent()
	if x.response.withoutFields != nil {
		e = x.common
		e.ResponseInit = x.response.of(s.fields)
		s.send(e)
	}
	return true
}

// withExtras returns end with the bodies and the explanation that s requests, on a copy, or end itself
// if s requests neither.
func (x *exchange[Req, Rsp]) withExtras(s *recipient, end *ResponseEnd) *ResponseEnd {
	if s.bodies == nil && !s.explain {
		return end
	}
	extended := *end
	if s.bodies != nil {
		extended.RequestBody, extended.ResponseBody = s.bodies.request.body(), s.bodies.response.body()
	}
	if s.explain {
		// Watchers share one explanation, which is made for the first that asks for it.
		if x.explanation == nil {
			x.explanation = x.choices()
		}
		extended.Explanation = x.explanation
	}
	return &extended
}
