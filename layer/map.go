package layer

import (
	"context"
	"errors"
)

// Map returns a service of other types around svc: in turns a request into one
// of svc's, out turns svc's response into the new one. For functions that keep
// the types see [MapRequest], [MapResponse] and [MapErr].
//
// Admission: none of its own; Ready is svc's. A rejection by svc is passed
// without out, and promises that the request is untouched. So in must not
// change its request or read its body.
//
// Cancellation: the context is passed unchanged.
//
// Body: out owns its response and closes the body if it does not pass it on,
// also if it fails. Layers above see the end of the new response: if its body
// has another name, use [WithCompletion].
//
// Errors: an error of in or out is wrapped in an [Error]. That of in means that
// nothing was sent. That of out never matches [ErrNotReady], because the
// request was served. Errors of svc are passed unchanged.
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
	var zero RspIn
	to, err := m.in(req)
	if err != nil {
		return zero, &Error{Layer: "map", Reason: "converting the request", Err: err}
	}
	from, err := m.svc.Call(ctx, to)
	if err != nil {
		return zero, err
	}
	turned := false
	defer func() {
		if !turned { // a panic, or Goexit
			bodyAccessorOf[Rsp]().closeBody(from)
		}
	}()
	rsp, err := m.out(from)
	turned = true
	if err != nil {
		return zero, &Error{Layer: "map", Reason: "converting the response", Err: hideRejection(err)}
	}
	return rsp, nil
}

// Describe includes svc, because Next cannot return a service of other types.
func (m *mapped[ReqIn, RspIn, Req, Rsp]) Describe() Node {
	next := Describe(m.svc)
	return Node{Name: "map", Next: &next}
}

// hideRejection hides ErrNotReady, because the request was served.
func hideRejection(err error) error {
	if errors.Is(err, ErrNotReady) {
		return hiddenKind{err, ErrNotReady}
	}
	return err
}

// hiddenKind matches all that err matches except a kind and the errors below it.
type hiddenKind struct{ err, kind error }

func (h hiddenKind) Error() string { return h.err.Error() }

func (h hiddenKind) Is(target error) bool {
	return !errors.Is(target, h.kind) && errors.Is(h.err, target)
}

func (h hiddenKind) As(target any) bool { return errors.As(h.err, target) }

// MapRequest replaces each request by the result of f.
//
// Admission: none of its own; Ready is forwarded. f must return a copy with its
// changes, because a rejection promises that the request is untouched.
//
// Cancellation: the context is passed unchanged.
//
// Body: f may wrap the body of the request, and must not read it.
//
// Errors: passed unchanged. To reject a request use [Filter].
//
// Cost: f; no allocation.
//
// A nil f panics.
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

// MapResponse replaces each response by the result of f.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: the context is passed unchanged. It is alive while f runs, and
// until the response ends.
//
// Body: f owns the response. It may wrap its body, and closes it if it returns
// another response.
//
// Errors: passed unchanged, without f.
//
// Cost: f; no allocation.
//
// A nil f panics.
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
			bodyAccessorOf[Rsp]().closeBody(rsp)
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

// MapErr replaces each error that is not a rejection by the result of f.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: the context is passed unchanged. f also gets the errors of
// canceled callers.
//
// Body: not touched. f does not get errors of reading a body.
//
// Errors: rejections are passed without f. The result of f never matches
// [ErrNotReady], because the request may have been served. If f returns nil,
// the error is unchanged. Wrap the error (%w), so that layers above recognize
// it.
//
// Cost: an indirect call while there is no error; no allocation.
//
// A nil f panics.
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
		err = hideRejection(other)
	}
	return rsp, err
}

func (m *mapErr[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

func (m *mapErr[Req, Rsp]) Describe() Node { return Node{Name: "map_err"} }
