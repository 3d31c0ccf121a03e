package layer

import (
	"context"
	"errors"
)

// Map makes a service of other types out of svc: in turns a request into one
// of svc's, out turns svc's response into one of its own. All type arguments
// are inferred. For functions that keep the types see [MapRequest],
// [MapResponse], [MapErr] and [Then].
//
// Admission: none of its own; Ready is svc's. A refusal by svc is passed
// before out is asked, and still promises that the request is untouched:
// therefore in changes nothing in what it is given, and reads nothing of its
// body.
//
// Cancellation: the context is passed as it is.
//
// Body: out owns the response it is given. What it does not hand on, it
// closes, also when it fails. Layers on top see the end of the new response,
// not of the old one: where it has a body under another name, tell them by
// [WithCompletion].
//
// Errors: an error of in or of out comes back in an [Error]. That of in means
// that nothing was sent. That of out never matches [ErrNotReady], whatever it
// wraps, because the request was served. Errors of svc are passed as they are.
//
// Cost: in and out; no allocation.
func Map[ReqIn, RspIn, Req, Rsp any](
	svc Service[Req, Rsp], in func(ReqIn) (Req, error), out func(Rsp) (RspIn, error),
) Service[ReqIn, RspIn] {
	check(svc != nil, "Map: nil service")
	check(in != nil && out != nil, "Map: nil function")
	return &mapped[ReqIn, RspIn, Req, Rsp]{svc: svc, in: in, out: out}
}

type mapped[ReqIn, RspIn, Req, Rsp any] struct {
	svc Service[Req, Rsp]
	in  func(ReqIn) (Req, error)
	out func(Rsp) (RspIn, error)
}

func (m *mapped[ReqIn, RspIn, Req, Rsp]) Ready(ctx context.Context) error { return m.svc.Ready(ctx) }

func (m *mapped[ReqIn, RspIn, Req, Rsp]) Call(ctx context.Context, req ReqIn) (RspIn, error) {
	var none RspIn
	to, err := m.in(req)
	if err != nil {
		return none, &Error{Layer: "map", Reason: "the request cannot be turned", Err: err}
	}
	from, err := m.svc.Call(ctx, to)
	if err != nil {
		return none, err
	}
	turned := false
	defer func() {
		if !turned { // a panic, or Goexit
			seamOf[Rsp]().closeBody(from)
		}
	}()
	rsp, err := m.out(from)
	turned = true
	if err != nil {
		return none, &Error{Layer: "map", Reason: "the response cannot be turned", Err: mapServed(err)}
	}
	return rsp, nil
}

// Describe includes what is below: it has other types, so that there is no
// Next.
func (m *mapped[ReqIn, RspIn, Req, Rsp]) Describe() Node {
	next := Describe(m.svc)
	return Node{Name: "map", Next: &next}
}

// mapServed keeps an error from calling a request untouched that was served.
func mapServed(err error) error {
	if errors.Is(err, ErrNotReady) {
		return mapHiddenError{err, ErrNotReady}
	}
	return err
}

// mapHiddenError matches what err matches, but for a kind and those that match it.
type mapHiddenError struct{ err, kind error }

func (h mapHiddenError) Error() string { return h.err.Error() }

func (h mapHiddenError) Is(target error) bool {
	return !errors.Is(target, h.kind) && errors.Is(h.err, target)
}

func (h mapHiddenError) As(target any) bool { return errors.As(h.err, target) }

// MapRequest gives inner what f makes of each request.
//
// Admission: none of its own; Ready is forwarded. Inner may refuse what f made,
// and that promises the caller that its request is untouched: so f returns
// another one, a copy with its changes, and leaves what it is given as it is.
//
// Cancellation: the context is passed as it is.
//
// Body: that of the response is not touched; that of the request may be
// wrapped by f, and not read.
//
// Errors: passed as they are. f sees none; to reject a request use [Filter].
//
// Cost: f; no allocation.
//
// A nil f is no layer at all.
func MapRequest[Req, Rsp any](f func(Req) Req) Layer[Req, Rsp] {
	check(f != nil, "MapRequest: nil function")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &mapRequest[Req, Rsp]{Service: next, f: f}
	}
}

type mapRequest[Req, Rsp any] struct {
	Service[Req, Rsp]
	f func(Req) Req
}

func (m *mapRequest[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	return m.Service.Call(ctx, m.f(req))
}

func (m *mapRequest[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

func (m *mapRequest[Req, Rsp]) Describe() Node { return Node{Name: "map_request"} }

// MapResponse gives the caller what f makes of each response. To make an error
// of a response, use [Then].
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: the context is passed as it is. It is alive while f runs, and
// until the response ended.
//
// Body: f owns the response that it is given. It may wrap its body; where it
// returns another response, it closes the one it drops.
//
// Errors: passed as they are. f sees none, and no refusal.
//
// Cost: f; no allocation.
//
// A nil f is no layer at all.
func MapResponse[Req, Rsp any](f func(Rsp) Rsp) Layer[Req, Rsp] {
	check(f != nil, "MapResponse: nil function")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &mapResponse[Req, Rsp]{Service: next, f: f}
	}
}

type mapResponse[Req, Rsp any] struct {
	Service[Req, Rsp]
	f func(Rsp) Rsp
}

func (m *mapResponse[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	mapped := false
	defer func() {
		if !mapped { // a panic, or Goexit
			seamOf[Rsp]().closeBody(rsp)
		}
	}()
	if rsp, err = m.Service.Call(ctx, req); err == nil {
		rsp = m.f(rsp)
	}
	mapped = true
	return rsp, err
}

func (m *mapResponse[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

func (m *mapResponse[Req, Rsp]) Describe() Node { return Node{Name: "map_response"} }

// MapErr gives the caller what f makes of each error that is not a refusal.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: the context is passed as it is. f sees the errors of callers
// who cancelled, too.
//
// Body: not touched. Errors that break a body off are not seen.
//
// Errors: refusals pass by f, so that none of them can be lost. What f returns
// never matches [ErrNotReady], whatever it wraps, because the request may have
// been served; where it returns nil the error stays as it was. Wrap the error
// (%w), so that layers above still find what they look for.
//
// Cost: nothing but an indirect call while there is no error; no allocation.
//
// A nil f is no layer at all.
func MapErr[Req, Rsp any](f func(error) error) Layer[Req, Rsp] {
	check(f != nil, "MapErr: nil function")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &mapErr[Req, Rsp]{Service: next, f: f}
	}
}

type mapErr[Req, Rsp any] struct {
	Service[Req, Rsp]
	f func(error) error
}

func (m *mapErr[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	rsp, err := m.Service.Call(ctx, req)
	if err == nil || errors.Is(err, ErrNotReady) {
		return rsp, err
	}
	if other := m.f(err); other != nil {
		err = mapServed(other)
	}
	return rsp, err
}

func (m *mapErr[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

func (m *mapErr[Req, Rsp]) Describe() Node { return Node{Name: "map_err"} }

// Then gives the caller what f makes of each outcome: of a response with a nil
// error, or of an error that is not a refusal. It may turn either into the
// other.
//
// Admission: none of its own; Ready is forwarded. f runs after inner has
// returned: a slot that ended with Call is free by then.
//
// Cancellation: f gets the request's context, which may be done.
//
// Body: f owns the response that it is given. Where it returns another one, or
// an error, it closes the one it drops.
//
// Errors: refusals pass by f, so that none of them can be lost. An error that
// f returns never matches [ErrNotReady], whatever it wraps, because the
// request may have been served.
//
// Cost: f; no allocation.
//
// A nil f is no layer at all.
func Then[Req, Rsp any](f func(context.Context, Rsp, error) (Rsp, error)) Layer[Req, Rsp] {
	check(f != nil, "Then: nil function")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &mapThen[Req, Rsp]{Service: next, f: f}
	}
}

type mapThen[Req, Rsp any] struct {
	Service[Req, Rsp]
	f func(context.Context, Rsp, error) (Rsp, error)
}

func (m *mapThen[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	mapped := false
	defer func() {
		if !mapped { // a panic, or Goexit
			seamOf[Rsp]().closeBody(rsp)
		}
	}()
	rsp, err = m.Service.Call(ctx, req)
	if err == nil || !errors.Is(err, ErrNotReady) {
		if rsp, err = m.f(ctx, rsp, err); err != nil {
			err = mapServed(err)
		}
	}
	mapped = true
	return rsp, err
}

func (m *mapThen[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

func (m *mapThen[Req, Rsp]) Describe() Node { return Node{Name: "then"} }
