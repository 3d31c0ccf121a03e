package tap

import (
	"time"

	"github.com/gotower/gotower/layer"
)

// finish tells all of the end.
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
	for _, one := range x.counted {
		one.end(plain, x.status())
	}
}

// status is 0 where there was no response.
func (x *exchange[Req, Rsp]) status() int {
	if x.response.plain == nil {
		return 0
	}
	return x.response.plain.Status
}

// leave sends the end to one watcher, after what was kept back for it.
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

// catchUp sends what was kept back. If the beginning does not fit, s has left.
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
