package tap

import (
	"context"
	"time"

	"github.com/gotower/gotower/layer"
)

// tally counts a request that no watcher wants. It is the [layer.Observer] of the
// response: an exchange without events, and one allocation instead of a dozen.
type tally[Req, Rsp any] struct {
	access layer.Accessor[Req, Rsp]
	ctx    context.Context             //nolint:containedctx // the request's; asked why a response broke off
	answer func(err error) (Rsp, bool) // nil: an error is no response

	rows  []*row
	first [1]*row // room for one row without another allocation

	start      time.Time
	rsp        Rsp
	status     int // 0 until there are response headers
	headStatus string
}

// count forwards a request that no watcher wants, and counts it.
func (t *tapped[Req, Rsp]) count(ctx context.Context, req Req, counters []*counter) (rsp Rsp, err error) {
	v := view[Req, Rsp]{access: t.access, place: t.place, ctx: ctx, req: req}
	var x *tally[Req, Rsp]
	for _, c := range counters {
		if !holds(c.match, &v) {
			continue
		}
		if x == nil {
			x = &tally[Req, Rsp]{access: t.access, ctx: ctx, answer: v.answer(), start: time.Now()}
			x.rows = x.first[:0]
		}
		about := v.event()
		init := RequestInit{Method: v.method(), Authority: v.authority(), Path: v.path()}
		x.rows = append(x.rows, c.rows.begin(&about, &init))
	}
	if x == nil {
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

func (x *tally[Req, Rsp]) respond(rsp Rsp) {
	x.rsp, x.status = rsp, x.access.Status(rsp)
	// Read now, because other layers may change the headers before the end.
	x.headStatus = x.access.ResponseHeader(rsp).Get("grpc-status")
}

// Data does nothing.
func (x *tally[Req, Rsp]) Data(int) {}

// End counts the end of a response, or an error of Call. The trailers of a
// complete response take precedence over its headers, as in exchange.End.
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

func (x *tally[Req, Rsp]) finish(err error, status string) {
	end := ResponseEnd{SinceRequestInit: time.Since(x.start), ResetCode: resetCode(x.ctx, err)}
	if end.ResetCode == nil && status != "" {
		end.GRPCStatus = grpcStatus(status)
	}
	for _, r := range x.rows {
		r.end(&end, x.status)
	}
}
