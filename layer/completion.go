package layer

import (
	"context"
	"errors"
	"io"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
)

// Observer is notified of the progress of one response. An Observer may also have a method Head(),
// which is called when the response headers have arrived. [ObserveBody] calls Head only for an
// upgraded connection, because its first byte may arrive long after the headers.
type Observer interface {
	// Data is called after n > 0 bytes of the body were read. It may be called concurrently
	// with End if the context of the request ends.
	Data(n int)

	// End is called exactly once. err is nil if the response is complete, trailers
	// included. Otherwise err is the error of the body, [ErrBodyClosedEarly], or the cause
	// of the context.
	End(err error)
}

// ResponseObserver is notified of the headers and the body of a response. Package tap passes a
// ResponseObserver to its accessors, which call it.
type ResponseObserver[Rsp any] interface {
	// ResponseStarted is called once, with the response headers.
	ResponseStarted(rsp Rsp)

	// ResponseData is called after n bytes of the body were sent. p has the bytes, or is nil
	// if they are unknown.
	ResponseData(n int, p []byte)
}

// Completion determines when a response ends. It calls the methods of o during the response and at
// its end. It returns the response for the caller, which may be a wrapper of rsp. The response also
// ends when ctx, the context of the request, ends.
//
// A layer calls a Completion once for each response, before the body is read, unless Call returned
// an error. If the Completion panics, the layer discards the response and calls o.End. Therefore, a
// Completion must not panic after it has called o.End or passed o to [ObserveBody].
type Completion[Rsp any] func(ctx context.Context, rsp Rsp, o Observer) Rsp

// AtReturn is the [Completion] for responses that end when Call returns.
func AtReturn[Rsp any](_ context.Context, rsp Rsp, o Observer) Rsp {
	o.End(nil)
	return rsp
}

// AtEnd returns the default [Completion]. If Rsp is a pointer to a struct with a field Body
// of type [io.ReadCloser], as *http.Response is, a response ends with its body. Any other
// response ends when Call returns.
func AtEnd[Rsp any]() Completion[Rsp] {
	index, ok := bodyField(reflect.TypeFor[Rsp]())
	if !ok {
		return AtReturn[Rsp]
	}
	return func(ctx context.Context, rsp Rsp, o Observer) Rsp {
		v := reflect.ValueOf(rsp)
		if v.IsNil() {
			o.End(nil)
			return rsp
		}
		body, _ := reflect.TypeAssert[*io.ReadCloser](v.Elem().Field(index).Addr()) // bodyField has checked the type
		if *body == nil {
			o.End(nil)
			return rsp
		}
		*body = ObserveBody(ctx, *body, o)
		return rsp
	}
}

// HasBody reports whether the type Rsp has a field for a body, as [AtEnd] defines it.
func HasBody[Rsp any]() bool {
	_, ok := bodyField(reflect.TypeFor[Rsp]())
	return ok
}

func bodyField(t reflect.Type) (index int, ok bool) {
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return 0, false
	}
	f, ok := t.Elem().FieldByName("Body")
	if !ok || len(f.Index) != 1 || f.Type != reflect.TypeFor[io.ReadCloser]() {
		return 0, false
	}
	return f.Index[0], true
}

// ObserveBody returns body with a wrapper that reports its reads and its end to o. The body
// ends at an error of Read, at Close, or when ctx ends. [io.EOF] is a successful end. All
// observers of a body share one wrapper. The body of an upgraded connection keeps its
// methods Write and CloseWrite. It does not end at io.EOF, because the server may still
// read. Close after io.EOF is then a successful end. If o panics when ctx ends, Close and
// failing Reads return a [PanicError].
func ObserveBody(ctx context.Context, body io.ReadCloser, o Observer) io.ReadCloser {
	w, upgraded := body.(io.Writer)
	if o, ok := o.(interface{ Head() }); ok && upgraded {
		o.Head()
	}
	switch b := body.(type) {
	case *observedBody:
		b.add(o)
		return b
	case *observedStream:
		b.add(o)
		return b
	case *observedConn:
		b.add(o)
		return b
	}
	b := &observedBody{innerBody: innerBody{body}, upgraded: upgraded}
	b.observers = append(b.first[:0], o)
	ends := reqctx.Watch(ctx, b)
	b.mu.Lock()
	b.ends = ends
	b.mu.Unlock()
	if !upgraded {
		return b
	}
	if half, ok := body.(halfCloser); ok {
		return &observedConn{b, w, half}
	}
	return &observedStream{b, w}
}

type observedBody struct {
	innerBody
	upgraded bool        // the body is also an io.Writer
	eof      atomic.Bool // an upgraded connection was read to its end

	// observers is complete before the body is passed to its reader, so Read uses it without
	// a lock. Until then it is guarded by mu.
	observers []Observer
	first     [8]Observer // avoids an allocation

	mu    sync.Mutex
	ends  reqctx.Registration // notifies of the end of the request's context
	ended bool
	err   error
	panic error // the panic of an observer after ctx ended the body
}

func (b *observedBody) add(o Observer) {
	b.mu.Lock()
	if b.ended {
		err := b.err
		b.mu.Unlock()
		o.End(err)
		return
	}
	b.observers = append(b.observers, o)
	b.mu.Unlock()
}

func (b *observedBody) Read(p []byte) (n int, err error) {
	returned := false
	defer func() {
		if !returned {
			b.end(errNotReturned)
		}
	}()
	n, err = b.ReadCloser.Read(p)
	if n > 0 {
		for _, o := range b.observers {
			o.Data(n)
		}
	}
	switch {
	case err == io.EOF && b.upgraded: //nolint:errorlint // a Reader ends with just this value
		b.eof.Store(true)
	case err == io.EOF: //nolint:errorlint // as above
		b.end(nil)
	case err != nil:
		b.end(err)
		err = b.withPanic(err)
	}
	returned = true
	return n, err
}

func (b *observedBody) Close() error {
	end := ErrBodyClosedEarly
	if b.eof.Load() {
		end = nil
	}
	defer b.end(end)
	return b.withPanic(b.ReadCloser.Close())
}

// innerBody is embedded by the wrappers of a body. It forwards Read, Close and Pending.
type innerBody struct{ io.ReadCloser }

// Pending returns the number of bytes that Read can return without waiting. eof is true if the body
// ends after these bytes. If the inner body has no method Pending, the results are 0 and false. The
// bodies of the HTTP engines of package httplayer have this method.
func (b innerBody) Pending() (n int, eof bool) {
	if b, ok := b.ReadCloser.(interface{ Pending() (n int, eof bool) }); ok {
		return b.Pending()
	}
	return 0, false
}

// ContextDone ends the body, because the context of the request has ended. It works on a
// goroutine of its own, because observers may block.
func (b *observedBody) ContextDone(cause error) { go b.cut(cause) }

func (b *observedBody) cut(cause error) {
	err := panics.Contain(func() { b.end(cause) })
	b.mu.Lock()
	b.panic = err
	b.mu.Unlock()
}

// withPanic returns err. If an observer panicked when the context ended, withPanic joins
// the panic to err.
func (b *observedBody) withPanic(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.panic == nil {
		return err
	}
	return errors.Join(err, b.panic)
}

func (b *observedBody) end(err error) {
	b.mu.Lock()
	if b.ended {
		b.mu.Unlock()
		return
	}
	b.ended, b.err = true, err
	observers, ends := b.observers, b.ends
	b.mu.Unlock()
	ends.Stop()
	panics.End(observers, err)
}

// callUntil sends req to the service next. It calls End of the Observer o when the response ends,
// or at once if next returns an error. If next or the [Completion] of opts panics, callUntil
// discards the response and calls o.End.
func callUntil[Req, Rsp any](
	ctx context.Context, next Service[Req, Rsp], req Req, opts *options[Rsp], o Observer,
) (rsp Rsp, err error) {
	returned := false
	defer opts.dropUnless(&returned, &rsp, &err, o)
	if rsp, err = next.Call(ctx, req); err != nil {
		return rsp, err
	}
	if opts.bare {
		o.End(nil)
	} else {
		rsp = opts.complete(ctx, rsp, o)
	}
	returned = true
	return rsp, nil
}

// dropUnless cleans up when a Call ends without a response for its caller. The method Call of a
// layer defers it. It does nothing if *returned is true. Otherwise Call returned an error, panicked
// or called Goexit. dropUnless then discards the response *rsp if *err is nil. Last, it calls End
// of the Observer in the argument to, unless that is nil.
func (o *options[Rsp]) dropUnless(returned *bool, rsp *Rsp, err *error, to Observer) {
	if !*returned {
		o.dropThenEnd(*rsp, *err, to)
	}
}

// dropThenEnd discards the response if err is nil. It then calls End of the Observer in the
// argument to, which may be nil. It is a separate function, so that dropUnless is small enough to
// be inlined.
func (o *options[Rsp]) dropThenEnd(rsp Rsp, err error, to Observer) {
	if to != nil {
		defer to.End(nil)
	}
	o.drop(rsp, err)
}

// drop discards the response rsp if err is nil and rsp is not zero. This is so if a Call got a
// response and then did not return it, for example because of a panic.
func (o *options[Rsp]) drop(rsp Rsp, err error) {
	if err == nil && !reflect.ValueOf(&rsp).Elem().IsZero() {
		o.discard(rsp)
	}
}

// discard releases the resources of rsp, which the caller will not get. It uses the method
// Drain of the [Replayer] if one is set. Otherwise it closes the body.
func (o *options[Rsp]) discard(rsp Rsp) {
	if d, ok := o.replayer.(interface{ Drain(rsp Rsp) }); ok {
		d.Drain(rsp)
		return
	}
	bodyAccessorOf[Rsp]().closeBody(rsp)
}

type observedStream struct {
	*observedBody
	io.Writer
}

// observedConn wraps an upgraded connection with the method CloseWrite, and has this method, too.
// An observedStream wraps an upgraded connection without this method.
type observedConn struct {
	*observedBody
	io.Writer
	halfCloser
}

type halfCloser interface{ CloseWrite() error }
