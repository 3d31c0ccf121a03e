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

// Observer is notified of a response's progress.
type Observer interface {
	// Data is called after n bytes of the body were read. [ObserveBody] also calls it with 0 when
	// an upgraded connection's headers have arrived, because its first byte may arrive long after
	// them. Data may be called concurrently with End if the request context ends.
	Data(n int)

	// End is called exactly once. err is nil if the response is complete, trailers included.
	// Otherwise err is the body's error, [ErrBodyClosedEarly], or the context's cause.
	End(err error)
}

// ResponseObserver is notified of a response's headers and body. Package tap passes a
// ResponseObserver to its accessors, which call it.
type ResponseObserver[Rsp any] interface {
	// ResponseStarted is called once, with the response headers.
	ResponseStarted(rsp Rsp)

	// ResponseData is called after n bytes of the body were sent. p holds the bytes, or is nil if
	// they are unknown.
	ResponseData(n int, p []byte)
}

// Completion determines when a response ends. It calls o's methods while the response is read and
// when it ends, and returns the response for the caller, which may wrap rsp. The response also ends
// when ctx, the request context, ends.
//
// A layer calls a Completion once per response, before the body is read, unless Call returned an
// error. If the Completion panics, the layer discards the response and calls o.End. A Completion
// therefore must not panic after calling o.End or passing o to [ObserveBody].
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

// HasBody reports whether the type Rsp contains a body field, as [AtEnd] defines it.
func HasBody[Rsp any]() bool {
	_, ok := bodyField(reflect.TypeFor[Rsp]())
	return ok
}

// bodyField returns the index of the field Body of type [io.ReadCloser] in the struct to which the type
// t points. ok is false if there is none.
func bodyField(t reflect.Type) (index int, ok bool) {
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return 0, false
	}
	f, ok := t.Elem().FieldByName("Body")
	// A field of an embedded struct has a longer index, and might be behind a nil pointer.
	if !ok || len(f.Index) != 1 || f.Type != reflect.TypeFor[io.ReadCloser]() {
		return 0, false
	}
	return f.Index[0], true
}

// ObserveBody returns body with a wrapper that reports its reads and its end to o. The body ends
// at an error of Read, at Close, or when ctx ends. [io.EOF] is a successful end. All of a body's
// observers share one wrapper. The body of an upgraded connection keeps its Write and CloseWrite
// methods. It does not end at io.EOF, because the server may still read. Close after io.EOF is
// then a successful end. If o panics when ctx ends, Close and failing Reads return a
// [PanicError].
func ObserveBody(ctx context.Context, body io.ReadCloser, o Observer) io.ReadCloser {
	w, upgraded := body.(io.Writer)
	// The headers of an upgraded connection have arrived, although no byte may follow for long.
	if upgraded {
		o.Data(0)
	}
	// A body that is observed already gets another observer instead of another wrapper.
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
	// Watch may call ContextDone at once, if the context has ended already. Therefore the observer is set before.
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

// observedBody is the wrapper that [ObserveBody] returns. It tells its observers, once, that the body
// has ended.
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
	ended bool                // the observers' End was called, or is about to be
	err   error               // with which the body has ended, for observers that are added later
	panic error               // the panic of an observer after ctx ended the body
}

// add adds an observer. If the body has ended already, the observer is told so now.
func (b *observedBody) add(o Observer) {
	// The response may already have ended. The observer must then learn that at once.
	b.mu.Lock()
	if b.ended {
		err := b.err
		b.mu.Unlock()
		// Without the lock, because End calls foreign code.
		o.End(err)
		return
	}
	b.observers = append(b.observers, o)
	b.mu.Unlock()
}

// Read reads from the body, and reports the bytes and the end to the observers.
func (b *observedBody) Read(p []byte) (n int, err error) {
	returned := false
	defer func() {
		if !returned { // a panic: the observers must still learn that the body has ended
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

// Close closes the body. For the observers, that is its end, if no Read has returned one.
func (b *observedBody) Close() error {
	// An upgraded connection that was read to its end is complete, although only Close ends it.
	end := ErrBodyClosedEarly
	if b.eof.Load() {
		end = nil
	}
	defer b.end(end)
	return b.withPanic(b.ReadCloser.Close())
}

// innerBody is embedded by a body's wrappers. It forwards Read, Close and Pending.
type innerBody struct{ io.ReadCloser }

// Pending returns the number of bytes that Read can return without waiting. eof is true if the body
// ends after these bytes. If the inner body does not implement Pending, the results are 0 and
// false. The engines of package httplayer implement it.
func (b innerBody) Pending() (n int, eof bool) {
	if b, ok := b.ReadCloser.(interface{ Pending() (n int, eof bool) }); ok {
		return b.Pending()
	}
	return 0, false
}

// ContextDone implements [reqctx.Watcher]. It ends the body, because the request context has ended.
// That happens on a new goroutine, because observers may block.
func (b *observedBody) ContextDone(cause error) { go b.cut(cause) }

// cut ends the body with cause. A panic of an observer is kept for the reader of the body.
func (b *observedBody) cut(cause error) {
	err := panics.Contain(func() { b.end(cause) })
	b.mu.Lock()
	b.panic = err
	b.mu.Unlock()
}

// withPanic adds the panic of an observer, which cut has kept, to err, the result of Read or Close.
func (b *observedBody) withPanic(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.panic == nil {
		return err
	}
	return errors.Join(err, b.panic)
}

// end ends the body: it calls End of all observers with err. Only the first call counts.
func (b *observedBody) end(err error) {
	b.mu.Lock()
	if b.ended {
		b.mu.Unlock()
		return
	}
	b.ended, b.err = true, err
	// Copied under mu, because add may append concurrently.
	observers := b.observers
	ends := b.ends
	b.mu.Unlock()
	ends.Stop()
	// Unlocked, because End may call back into the body.
	panics.End(observers, err)
}

// callUntil sends req to the service next, and calls o.End when the response ends, or immediately if
// next returns an error. That also holds if next or the [Completion] panics; the response is then
// discarded.
func callUntil[Req, Rsp any](
	ctx context.Context, next Service[Req, Rsp], req Req, opts *options[Rsp], o Observer,
) (rsp Rsp, err error) {
	// False after a panic too: then the deferred function releases what is held.
	returned := false
	defer opts.dropUnless(&returned, &rsp, &err, o)
	if rsp, err = next.Call(ctx, req); err != nil {
		return rsp, err
	}
	// A response without a body ends when it is returned.
	if opts.bare {
		o.End(nil)
	} else {
		rsp = opts.complete(ctx, rsp, o)
	}
	returned = true
	return rsp, nil
}

// dropUnless cleans up after a Call that does not return a response to its caller, because of an error,
// a panic or a Goexit. A layer's Call defers it, with pointers to its results, and sets *returned when
// it succeeds. dropUnless discards *rsp, if there is one, and calls observer.End, unless observer is
// nil.
func (o *options[Rsp]) dropUnless(returned *bool, rsp *Rsp, err *error, observer Observer) {
	if !*returned {
		o.dropThenEnd(*rsp, *err, observer)
	}
}

// dropThenEnd discards the response rsp of a Call that has not returned it, if there is one, and then calls
// observer.End, unless observer is nil. It is a separate function, so that dropUnless is small enough to be
// inlined.
func (o *options[Rsp]) dropThenEnd(rsp Rsp, err error, observer Observer) {
	if observer != nil {
		defer observer.End(nil)
	}
	o.drop(rsp, err)
}

// drop discards the response rsp, if err is nil and rsp is not zero: a Call got it, but did not return
// it, for example because of a panic.
func (o *options[Rsp]) drop(rsp Rsp, err error) {
	if err == nil && !reflect.ValueOf(&rsp).Elem().IsZero() {
		o.discard(rsp)
	}
}

// discard releases the resources of rsp, which the caller will not get. It uses the [Protocol]'s
// Drain if one is set, and otherwise closes the body.
func (o *options[Rsp]) discard(rsp Rsp) {
	if o.responses != nil {
		o.responses.Drain(rsp)
		return
	}
	bodyAccessorOf[Rsp]().closeBody(rsp)
}

// observedStream wraps the body of an upgraded connection, to which the caller also writes.
type observedStream struct {
	*observedBody
	io.Writer
}

// observedConn wraps an upgraded connection that supports CloseWrite, and supports it too. An
// observedStream wraps one that does not.
type observedConn struct {
	*observedBody
	io.Writer
	halfCloser
}

// halfCloser is implemented by connections that can close their sending half alone.
type halfCloser interface{ CloseWrite() error }
