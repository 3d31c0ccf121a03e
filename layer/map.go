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
