package layer

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"time"
)

// Protocol is what layers need to know about a protocol: when a response ends, whether it is a
// failure, and how a request is sent again. [WithProtocol] sets it for a stack. httplayer.HTTP,
// grpclayer.GRPC and tcplayer.Bytes are the Protocols of this module, and implement [Accessor], or
// [Editor], too.
//
// A type that implements it should embed [BaseProtocol] and define the methods for which the
// defaults are wrong. All methods must be safe for concurrent use.
type Protocol[Req, Rsp any] interface {
	// Complete is a [Completion]: it arranges that o is notified when rsp ends, and returns
	// the response to pass on.
	Complete(ctx context.Context, rsp Rsp, o Observer) Rsp

	// Classify is a [Classifier]: it returns the outcome's class.
	Classify(o Outcome[Rsp]) Class

	// Outline returns a short description of rsp for an [Explanation], such as "status 503", or "".
	Outline(rsp Rsp) string

	// Idempotent reports whether sending req twice has the same effect as sending it once.
	Idempotent(req Req) bool

	// Replay prepares req for several attempts, for which it stores up to limit bytes of the
	// body. It does not read the body yet. It returns nil if req needs no stored body and can be
	// sent unchanged.
	Replay(req Req, limit int64) Replay[Req]

	// Peek waits until it is known whether rsp is a failure. If trailers may report one, it reads
	// the first bytes of the body. It returns when ctx ends. whole is the complete response, with
	// the bytes that Peek read. ended reports whether the response has ended and its trailers are
	// known. If ended is false, rsp must not be used any more. For a protocol without trailers,
	// Peek returns rsp and false.
	Peek(ctx context.Context, rsp Rsp) (whole Rsp, ended bool)

	// RetryAfter returns the time to wait before another attempt, if rsp or err specifies
	// one. Otherwise it returns false. A negative time forbids another attempt.
	RetryAfter(rsp Rsp, err error) (time.Duration, bool)

	// Drain discards a response. If only a little of the body is left, Drain reads it, so
	// that the connection can be reused. It closes the body.
	Drain(rsp Rsp)
}

// responses has the methods of a [Protocol] that layers use without knowing its type of request.
type responses[Rsp any] interface {
	Complete(ctx context.Context, rsp Rsp, o Observer) Rsp
	Classify(o Outcome[Rsp]) Class
	RetryAfter(rsp Rsp, err error) (time.Duration, bool)
	Drain(rsp Rsp)
}

// BaseProtocol implements [Protocol] for messages without a body: a response ends when Call
// returns, only an error is a failure, and each request can be sent again unchanged.
type BaseProtocol[Req, Rsp any] struct{}

// Complete calls o.End, like [AtReturn].
func (BaseProtocol[Req, Rsp]) Complete(ctx context.Context, rsp Rsp, o Observer) Rsp {
	return AtReturn(ctx, rsp, o)
}

// Classify returns the result of [DefaultClassifier].
func (BaseProtocol[Req, Rsp]) Classify(o Outcome[Rsp]) Class { return DefaultClassifier(o) }

// Outline returns "".
func (BaseProtocol[Req, Rsp]) Outline(Rsp) string { return "" }

// Idempotent returns true.
func (BaseProtocol[Req, Rsp]) Idempotent(Req) bool { return true }

// Replay returns nil, because a request needs no copy.
func (BaseProtocol[Req, Rsp]) Replay(Req, int64) Replay[Req] { return nil }

// RetryAfter returns the result of the function [RetryAfter] for err.
func (BaseProtocol[Req, Rsp]) RetryAfter(_ Rsp, err error) (time.Duration, bool) {
	return RetryAfter(err)
}

// Peek returns rsp and false.
func (BaseProtocol[Req, Rsp]) Peek(_ context.Context, rsp Rsp) (Rsp, bool) { return rsp, false }

// Drain does nothing, as for responses without a body.
func (BaseProtocol[Req, Rsp]) Drain(Rsp) {}

// WithProtocol sets the [Protocol] of a stack's messages. [WithClassifier] and [WithCompletion] replace
// parts of it. Without a Protocol, layers treat messages that are pointers
// to structs with a field Body of type [io.ReadCloser] like those of net/http, and other messages
// as [BaseProtocol] does. A layer's constructor panics if p is for another type of request.
func WithProtocol[Req, Rsp any](p Protocol[Req, Rsp]) Option[Rsp] {
	check(p != nil, "WithProtocol: nil Protocol")
	return func(o *options[Rsp]) {
		o.protocol = p
		o.responses = p
	}
}

// protocolOf returns the [Protocol] that was set by [WithProtocol], or the default one.
func protocolOf[Req, Rsp any](o options[Rsp]) Protocol[Req, Rsp] {
	if o.protocol == nil {
		return fieldProtocolOf[Req, Rsp]()
	}
	p, ok := o.protocol.(Protocol[Req, Rsp])
	check(ok, fmt.Sprintf("WithProtocol: %T is not for requests of type %v", o.protocol, reflect.TypeFor[Req]()))
	return p
}

// fieldProtocol is the default [Protocol]. It finds the fields Method, GetBody and Body of messages
// like those of net/http by reflection. The index of a field that does not exist is -1.
type fieldProtocol[Req, Rsp any] struct {
	BaseProtocol[Req, Rsp]
	method, getBody int
	requests        bodyAccessor[Req]
	responses       bodyAccessor[Rsp]
}

// fieldProtocolOf returns the fieldProtocol for messages of these types. The fields are looked up once.
func fieldProtocolOf[Req, Rsp any]() fieldProtocol[Req, Rsp] {
	// An index of -1 means that the field does not exist.
	p := fieldProtocol[Req, Rsp]{method: -1, getBody: -1, requests: bodyAccessorOf[Req](), responses: bodyAccessorOf[Rsp]()}
	t := reflect.TypeFor[Req]()
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return p
	}
	for i := range t.Elem().NumField() {
		switch f := t.Elem().Field(i); {
		case f.Name == "Method" && f.Type.Kind() == reflect.String:
			p.method = i
		case f.Name == "GetBody" && f.Type == reflect.TypeFor[func() (io.ReadCloser, error)]():
			p.getBody = i
		}
	}
	return p
}

// Idempotent reports whether the field Method of req is a method that is idempotent by RFC
// 9110, section 9.2.2. It returns true if the field does not exist or is empty.
func (p fieldProtocol[Req, Rsp]) Idempotent(req Req) bool {
	// A type without a method has requests that can always be repeated.
	if p.method < 0 {
		return true
	}
	v := reflect.ValueOf(req)
	if v.IsNil() {
		return true
	}
	// These methods have the same effect once or twice (RFC 9110, section 9.2.2). "" means GET, as in net/http.
	switch v.Elem().Field(p.method).String() {
	case "", "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return true
	}
	return false
}

// Replay returns a replay of req. Its attempts get their bodies from req's GetBody function, or
// else from the stored bytes. Each attempt is a shallow copy of req without GetBody, so that a
// service below cannot send the request again.
func (p fieldProtocol[Req, Rsp]) Replay(req Req, limit int64) Replay[Req] {
	body := p.requests.body(req)
	if body == nil {
		return nil
	}
	k := &fieldReplay[Req, Rsp]{req: req, fields: p}
	var get func() (io.ReadCloser, error)
	// As in http.Request, a function GetBody returns another copy of the body.
	if p.getBody >= 0 {
		get, _ = reflect.TypeAssert[func() (io.ReadCloser, error)](reflect.ValueOf(req).Elem().Field(p.getBody))
	}
	k.init(body, get, limit)
	return k
}

// Drain reads the rest of rsp's body, if it is short, and closes it.
func (p fieldProtocol[Req, Rsp]) Drain(rsp Rsp) {
	if body := p.responses.body(rsp); body != nil {
		DrainBody(body)
	}
}

// fieldReplay is the [Replay] of a request with a body, for fieldProtocol.
type fieldReplay[Req, Rsp any] struct {
	BodyReplay
	req    Req
	fields fieldProtocol[Req, Rsp]
}

// Next returns the next attempt: a shallow copy of the request, with a body that begins at its
// beginning.
func (k *fieldReplay[Req, Rsp]) Next() (Req, bool) {
	// A reader for the body from its beginning, or false if it cannot be sent again.
	body, ok := k.BodyReplay.Next()
	if !ok {
		return k.req, false
	}
	// A copy of the request, because the earlier attempt may still use the original.
	clone := reflect.New(reflect.TypeFor[Req]().Elem())
	clone.Elem().Set(reflect.ValueOf(k.req).Elem())
	clone.Elem().Field(k.fields.requests.index).Set(reflect.ValueOf(body))
	// Otherwise a client would take the body from GetBody, and past this reader.
	if k.fields.getBody >= 0 {
		clone.Elem().Field(k.fields.getBody).SetZero()
	}
	copied, _ := reflect.TypeAssert[Req](clone)
	return copied, true
}
