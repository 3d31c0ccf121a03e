package tap

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
)

// tally is one request that is counted and that nobody watches: an exchange
// that makes no events, and is one allocation. It is the [layer.Observer] of
// the response.
type tally[Req, Rsp any] struct {
	access layer.Accessor[Req, Rsp]
	ctx    context.Context             //nolint:containedctx // the request's; asked why a response broke off
	answer func(err error) (Rsp, bool) // nil: an error is no response

	// What the sinks are told. They keep none of it.
	about Event
	init  RequestInit
	end   ResponseEnd

	counted []counted
	first   [1]counted // room for one sink without another allocation

	start      time.Time
	rsp        Rsp
	status     int // 0 until there are response headers
	headStatus string
	grpcStatus codes.Code
}

// count forwards a request that nobody watches, and tells those of sinks that
// want it of its begin and its end.
func (t *tapped[Req, Rsp]) count(ctx context.Context, req Req, sinks []*counter) (rsp Rsp, err error) {
	v := view[Req, Rsp]{access: t.access, place: t.place, ctx: ctx, req: req}
	var x *tally[Req, Rsp]
	for _, c := range sinks {
		if !holds(c.match, &v) {
			continue
		}
		if x == nil {
			x = newTally(&v)
		}
		if one := c.sink.begin(&x.about, &x.init); one != nil {
			x.counted = append(x.counted, one)
		}
	}
	if x == nil || len(x.counted) == 0 {
		return t.Service.Call(ctx, req)
	}

	returned := false
	defer func() {
		if !returned { // a panic, or Goexit
			x.finish(nil, "")
		}
	}()
	rsp, err = t.Service.Call(ctx, req)
	returned = true
	if err != nil {
		x.End(err)
		return rsp, err
	}
	x.respond(rsp)
	return t.access.Complete(ctx, rsp, x), nil
}

func newTally[Req, Rsp any](v *view[Req, Rsp]) *tally[Req, Rsp] {
	x := &tally[Req, Rsp]{
		access: v.access, ctx: v.ctx, answer: v.answer(), start: time.Now(),
		about: Event{
			Direction:         v.place.direction,
			Source:            v.source(),
			Destination:       v.destination(),
			SourceLabels:      v.place.sourceLabels,
			DestinationLabels: v.place.destinationLabels,
			RouteLabels:       v.route(),
		},
		init: RequestInit{Method: v.method(), Authority: v.authority(), Path: v.path()},
	}
	x.counted = x.first[:0]
	return x
}

func (x *tally[Req, Rsp]) respond(rsp Rsp) {
	x.rsp, x.status = rsp, x.access.Status(rsp)
	// Kept for the end: by then other layers may be changing the headers.
	x.headStatus = x.access.ResponseHeader(rsp).Get("grpc-status")
}

// Data is no news here.
func (x *tally[Req, Rsp]) Data(int) {}

// End hears of the end of a response, or that there was none. Only a complete one has
// trailers to read, and what they say goes before the headers, see
// exchange.End.
func (x *tally[Req, Rsp]) End(err error) {
	if err != nil && x.answer != nil {
		if rsp, ok := x.answer(err); ok {
			x.respond(rsp)
			err = nil
		}
	}
	status := x.headStatus
	if err == nil {
		t := x.access.ResponseTrailer(x.rsp)
		if s := t.Get("grpc-status"); s != "" || status != "" && !isEmpty(t) {
			status = s
		}
	}
	x.finish(err, status)
}

// finish tells the sinks. Status is a grpc-status.
func (x *tally[Req, Rsp]) finish(err error, status string) {
	x.end.SinceRequestInit = time.Since(x.start)
	if err != nil {
		x.end.ResetCode = resetCode(x.ctx, err)
	}
	if x.end.ResetCode == nil && status != "" {
		if n, err := strconv.ParseUint(status, 10, 32); err == nil {
			x.grpcStatus = codes.Code(n)
			x.end.GRPCStatus = &x.grpcStatus
		}
	}
	for _, one := range x.counted {
		one.end(&x.end, x.status)
	}
}
