package layer

import (
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// resendOf is the Replayer that the options name, or the default: see [Replayer].
func resendOf[Req, Rsp any](o options[Rsp]) Replayer[Req, Rsp] {
	if given, ok := o.resend.(Replayer[Req, Rsp]); ok {
		return given
	}
	r := bodyResend[Req, Rsp]{method: -1, getBody: -1, requests: seamOf[Req](), responses: seamOf[Rsp]()}
	t := reflect.TypeFor[Req]()
	if r.requests.has {
		r.getBody = fieldOf(t.Elem(), "GetBody", func(f reflect.Type) bool { return f == reflect.TypeFor[func() (io.ReadCloser, error)]() })
	}
	if t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct {
		r.method = fieldOf(t.Elem(), "Method", func(f reflect.Type) bool { return f.Kind() == reflect.String })
	}
	return r
}

func fieldOf(t reflect.Type, name string, is func(reflect.Type) bool) int {
	f, ok := t.FieldByName(name)
	if !ok || len(f.Index) != 1 || !is(f.Type) {
		return -1
	}
	return f.Index[0]
}

// bodyResend is the default Resend. It knows its messages by the names of their
// fields, looked up once; -1 is a field that is not there.
type bodyResend[Req, Rsp any] struct {
	method, getBody int
	requests        bodySeam[Req]
	responses       bodySeam[Rsp]
}

// Idempotent goes by the method, where requests have one: RFC 9110, section
// 9.2.2. What has none may always be sent again.
func (r bodyResend[Req, Rsp]) Idempotent(req Req) bool {
	if r.method < 0 {
		return true
	}
	v := reflect.ValueOf(req)
	if v.IsNil() {
		return true
	}
	switch v.Elem().Field(r.method).String() {
	case "", "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return true
	}
	return false
}

// Replay keeps what is read of the body, unless the request itself has a
// GetBody that returns it anew. Every try gets a shallow copy of the request:
// what lies below must not write to the maps and slices in it.
func (r bodyResend[Req, Rsp]) Replay(req Req, limit int64) Replay[Req] {
	body := r.requests.body(req)
	if body == nil {
		return nil
	}
	if r.getBody >= 0 {
		field := reflect.ValueOf(req).Elem().Field(r.getBody)
		if get, _ := reflect.TypeAssert[func() (io.ReadCloser, error)](field); get != nil {
			return &getBodyReplay[Req]{req: req, body: r.requests.index, getBody: r.getBody, get: get, last: body}
		}
	}
	again := &keptReplay[Req]{req: req, field: r.requests.index}
	again.init(body, limit)
	return again
}

// RetryAfter is what the error says; responses of no known protocol say nothing.
func (r bodyResend[Req, Rsp]) RetryAfter(_ Rsp, err error) (time.Duration, bool) {
	return RetryAfter(err)
}

// What Discard reads of a body, and for how long, before it closes it. A
// connection is worth a few packets, and no more of the caller's time.
const (
	discardBytes = 8 << 10
	discardTime  = 50 * time.Millisecond
)

func (r bodyResend[Req, Rsp]) Drain(rsp Rsp) {
	if body := r.responses.body(rsp); body != nil {
		DrainBody(body)
	}
}

// DrainBody gives a response body up: it reads what is left of it, up to
// 8 KiB and for up to 50 ms, so that its connection can be used again, and
// closes it. It is for a [Replayer]'s Discard. The body may be closed while it
// is being read.
func DrainBody(body io.ReadCloser) {
	closed := sync.OnceFunc(func() { body.Close() }) // which panics again, here, if it did in the timer
	late := time.AfterFunc(discardTime, func() { _ = panics.Contain(closed) })
	defer late.Stop()
	defer closed()
	// One byte more than what is allowed, or the end would not be seen.
	io.CopyN(io.Discard, body, discardBytes+1) //nolint:errcheck // whatever it was, it is over
}

// keptReplay is the Replay of a request that has but one body.
type keptReplay[Req any] struct {
	BodyReplay
	req   Req
	field int
}

func (k *keptReplay[Req]) Next() (Req, bool) {
	body, ok := k.BodyReplay.Next()
	if !ok {
		return k.req, false
	}
	return withBody(k.req, k.field, body), true
}

// getBodyReplay is the Replay of a request that can get its body anew. The
// first try sends it as it is; the copies do not say how to get another body,
// so that nobody below sends them again by himself.
type getBodyReplay[Req any] struct {
	req           Req
	body, getBody int // the fields
	get           func() (io.ReadCloser, error)

	mu     sync.Mutex
	sent   bool
	last   io.ReadCloser // of the newest try
	before io.ReadCloser // of the one before; nil if that was closed, or there was none
}

func (g *getBodyReplay[Req]) Next() (Req, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.sent {
		g.sent = true
		return g.req, true
	}
	body, err := g.get()
	if err != nil {
		return g.req, false
	}
	g.before, g.last = g.last, body
	again := withBody(g.req, g.body, body)
	reflect.ValueOf(again).Elem().Field(g.getBody).SetZero()
	return again, true
}

// Retire closes the body of the try before the newest, which may not have taken
// it. See BodyReplay.Retire.
func (g *getBodyReplay[Req]) Retire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.before != nil {
		_ = g.before.Close()
		g.before = nil
	}
}

// Close closes the body that the last try did not take. See BodyReplay.Close.
func (g *getBodyReplay[Req]) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last.Close()
}

func (g *getBodyReplay[Req]) End() {}

// withBody returns a shallow copy of req with another body.
func withBody[Req any](req Req, field int, body io.ReadCloser) Req {
	again := reflect.New(reflect.TypeFor[Req]().Elem())
	again.Elem().Set(reflect.ValueOf(req).Elem())
	again.Elem().Field(field).Set(reflect.ValueOf(body))
	copied, _ := reflect.TypeAssert[Req](again)
	return copied
}
