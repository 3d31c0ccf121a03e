package layer

import (
	"context"
	"errors"
)

// Map adapts svc to other types: in converts a request to the type of svc, and out converts the
// response of svc. If the types stay the same, use [MapRequest], [MapResponse] or [MapErr].
//
// Admission: svc decides, and its rejections are passed unchanged. in must not modify the
// request or read its body, because a rejected request must be unchanged.
//
// Cancellation: the context is passed unchanged.
//
// Body: out must close the body of its argument, also if it fails, unless the new
// response has that body. Layers above use the end of the new response. If its body has
// another name than Body, set [WithCompletion].
//
// Errors: an error of in or out is wrapped in an [Error]. After an error of in nothing
// was sent. An error of out never matches [ErrNotReady], because the request was
// served. Errors of svc are passed unchanged.
//
// Cost: one call of in and of out. No allocation.
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

// Describe includes svc, because a method Next cannot return a service of other types.
func (m *mapped[ReqIn, RspIn, Req, Rsp]) Describe() Node {
	next := Describe(m.svc)
	return Node{Name: "map", Next: &next}
}

// hideRejection returns err so that it does not match ErrNotReady.
func hideRejection(err error) error {
	if errors.Is(err, ErrNotReady) {
		return hiddenKind{err, ErrNotReady}
	}
	return err
}

// hiddenKind matches the errors that err matches, except kind and kinds that wrap it.
type hiddenKind struct{ err, kind error } //nolint:errname // it hides a kind

func (h hiddenKind) Error() string { return h.err.Error() }

func (h hiddenKind) Is(target error) bool {
	return !errors.Is(target, h.kind) && errors.Is(h.err, target)
}

func (h hiddenKind) As(target any) bool { return errors.As(h.err, target) }

// MapRequest replaces each request by the result of f.
//
// Admission: every request is admitted. Ready is forwarded. f must return a copy if it
// changes the request, because a rejected request must be unchanged.
//
// Cancellation: the context is passed unchanged.
//
// Body: f may wrap the body of the request, but must not read it.
//
// Errors: passed unchanged. To reject a request use [Filter].
//
// Cost: one call of f. No allocation.
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
// Admission: every request is admitted. Ready is forwarded.
//
// Cancellation: the context is passed unchanged. It has not ended when f is called,
// unless the caller canceled, and does not end before the response.
//
// Body: f may wrap the body of the response. It must close the body if it returns
// another response.
//
// Errors: passed unchanged. f is not called.
//
// Cost: one call of f. No allocation.
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
// Admission: every request is admitted. Ready is forwarded.
//
// Cancellation: the context is passed unchanged. f also receives the errors of canceled
// requests.
//
// Body: not touched. f does not receive errors of reading a body.
//
// Errors: rejections are passed unchanged. The result of f never matches [ErrNotReady],
// because the request may have been served. If f returns nil, the error is unchanged. f
// should wrap the error (%w), so that layers above recognize it.
//
// Cost: one indirect call for a success. No allocation.
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
