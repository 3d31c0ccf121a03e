package tap

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// exchange is one request and its response, for the watchers that were shown
// the request. It is the [layer.Observer] of the response. What it sends is
// made at most twice, with fields and without, however many watch.
type exchange[Req, Rsp any] struct {
	access layer.Access[Req, Rsp]
	ctx    context.Context //nolint:containedctx // the request's; asked why a response broke off
	common Event           // what all events have
	seats  []seat
	first  [1]seat // room for one watcher without another allocation

	start      time.Time
	init       *RequestInit
	initFields *RequestInit // made for the first watcher that asks for fields

	rsp        Rsp
	responded  time.Time // zero until there are response headers
	headStatus string    // grpc-status among them
	bytes      atomic.Uint64
}

// seat is an exchange's place in the stream of one watcher.
type seat struct {
	*watcher
	stream uint64
}

func (s seat) send(e Event) bool {
	e.ID = StreamID{Base: s.base, Stream: s.stream}
	return s.watcher.send(e)
}

func newExchange[Req, Rsp any](v *view[Req, Rsp]) *exchange[Req, Rsp] {
	x := &exchange[Req, Rsp]{
		access: v.access,
		ctx:    v.ctx,
		start:  time.Now(),
		init:   &RequestInit{Method: v.method(), Scheme: v.scheme(), Authority: v.authority(), Path: v.path()},
		common: Event{
			Direction:         v.place.direction,
			Source:            v.source(),
			Destination:       v.place.destination,
			SourceLabels:      v.place.sourceLabels,
			DestinationLabels: v.place.destinationLabels,
			RouteLabels:       v.route(),
		},
	}
	x.seats = x.first[:0]
	return x
}

// show tells w of the request. If w has no room for that, the request is not
// tapped for w: a stream without a beginning helps nobody.
func (x *exchange[Req, Rsp]) show(w *watcher, req Req) {
	stream, ok := w.enter()
	if !ok {
		return
	}
	e := x.common
	e.RequestInit = x.init
	if w.fields {
		if x.initFields == nil {
			x.initFields = new(*x.init)
			x.initFields.Headers = w.reg.capture(x.access.RequestHeader(req))
		}
		e.RequestInit = x.initFields
	}
	s := seat{w, stream}
	if !s.send(e) {
		w.leave()
		return
	}
	x.seats = append(x.seats, s)
}

// respond tells of the response headers.
func (x *exchange[Req, Rsp]) respond(rsp Rsp) {
	x.rsp, x.responded = rsp, time.Now()
	head := x.access.ResponseHeader(rsp)
	// Kept for the end: by then other layers may be changing the headers.
	x.headStatus = head.Get("grpc-status")
	plain := &ResponseInit{SinceRequestInit: x.responded.Sub(x.start), Status: x.access.Status(rsp)}
	var full *ResponseInit
	for _, s := range x.seats {
		e := x.common
		e.ResponseInit = plain
		if s.fields {
			if full == nil {
				full = new(*plain)
				full.Headers = s.reg.capture(head)
			}
			e.ResponseInit = full
		}
		s.send(e)
	}
}

// Data counts.
func (x *exchange[Req, Rsp]) Data(n int) { x.bytes.Add(uint64(n)) }

// End tells of the end of a response that had headers.
func (x *exchange[Req, Rsp]) End(err error) {
	end := &ResponseEnd{Bytes: x.bytes.Load(), ResetCode: resetCode(x.ctx, err)}
	status := x.headStatus
	var trailer layer.Fields
	// Only a complete response has trailers to read. One that was given up
	// may still be written to by whoever reads it.
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

// fail tells of the end of a request that had no response.
func (x *exchange[Req, Rsp]) fail(err error) {
	x.finish(&ResponseEnd{ResetCode: resetCode(x.ctx, err)}, nil)
}

func (x *exchange[Req, Rsp]) finish(plain *ResponseEnd, trailer layer.Fields) {
	now := time.Now()
	plain.SinceRequestInit = now.Sub(x.start)
	if !x.responded.IsZero() {
		plain.SinceResponseInit = new(now.Sub(x.responded))
	}
	var full *ResponseEnd
	for _, s := range x.seats {
		e := x.common
		e.ResponseEnd = plain
		if s.fields && trailer != nil {
			if full == nil {
				full = new(*plain)
				full.Trailers = s.reg.capture(trailer)
			}
			e.ResponseEnd = full
		}
		s.send(e)
		s.leave()
	}
}
