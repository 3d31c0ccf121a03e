package layertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing/synctest"
	"time"
)

// plan specifies one call that a check makes, and how the inner service serves it.
type plan struct {
	wait      time.Duration // time that the caller waits before the call
	delay     time.Duration // time that the inner service waits first
	hold      bool          // the inner service holds the call until release is called
	readFirst bool          // with hold: the inner service reads the request before it holds the call
	beforeEnd func()        // called before the call ends with one of the following outcomes; may be nil
	panics    any           // the value with which the inner service panics; nil for no panic
	exit      bool          // the inner service calls runtime.Goexit
	err       error         // the error that Call returns

	noBody    bool  // the response has no body
	bodyErr   error // the error that reading the body returns instead of io.EOF
	retryable bool  // the response is changed by LayerOf.Retryable
	keepsBody bool  // the check reads and closes the response body; otherwise probe.run does

	planOf func(attempt int) plan // returns the plan of the given attempt, counted from 1; wait and keepsBody are not used
}

// attempt is one call that the layer makes of the inner service. For a probe, which is a check's
// call, there can be several attempts.
type attempt struct {
	returned bool
	body     *responseBody // nil if the attempt returned no body
}

// probeKey is the context key for the probe of a call.
type probeKey struct{}

// probe is one call that a check makes. The caller and the inner service record the
// results of the call in the probe. The inner service gets the probe from the context.
type probe[Req, Rsp any] struct {
	plan
	subject *subject[Req, Rsp]
	id      int          // number of the call, from which the content of its messages is made
	req     Req          // the request that the caller sends
	sent    *requestBody // the body of req

	released chan struct{} // closed by release
	release  func()        // ends the wait of a call with plan.hold; may be called more than once

	mu       sync.Mutex // guards the following fields, which the inner service sets
	records  []*attempt
	ctx      context.Context // ctx, innerReq, body and innerRsp are those of the last attempt
	innerReq Req
	body     *responseBody
	innerRsp Rsp
	mismatch error // the first difference between the request sent and the one received

	done     chan struct{} // closed when the following fields are set
	rsp      Rsp
	err      error  // error of Call
	readErr  error  // error of the body, except io.EOF
	read     string // bytes from the body
	panicked any
	exited   bool // the call ended its goroutine by runtime.Goexit
}

// start calls the subject with the plan pl on a new goroutine.
func (r *rig[Req, Rsp]) start(ctx context.Context, pl plan) *probe[Req, Rsp] {
	p := r.probe(pl)
	go p.run(ctx, r.svc.Call)
	return p
}

// call does the same as start, and then waits until the call has returned or is blocked.
func (r *rig[Req, Rsp]) call(ctx context.Context, pl plan) *probe[Req, Rsp] {
	p := r.start(ctx, pl)
	synctest.Wait()
	return p
}

// probe returns a new probe for a call with the plan pl. The call itself begins in the method run.
func (r *rig[Req, Rsp]) probe(pl plan) *probe[Req, Rsp] {
	id := int(r.calls.Add(1))
	p := &probe[Req, Rsp]{
		plan: pl, subject: r.subject, id: id, req: r.Request(id), sent: newRequestBody(id),
		released: make(chan struct{}), done: make(chan struct{}),
	}
	p.release = sync.OnceFunc(func() { close(p.released) })
	r.requests.setBody(p.req, p.sent)
	return p
}

// run waits for p.wait, makes the call and records its result. It also reads the response body,
// unless p.keepsBody is set. It recovers a panic of the call, and records whether the call ended the
// goroutine by runtime.Goexit.
func (p *probe[Req, Rsp]) run(ctx context.Context, call func(context.Context, Req) (Rsp, error)) {
	defer close(p.done)
	// normal stays false if the call panics or ends the goroutine. In the latter case recover returns nil.
	normal := false
	defer func() {
		p.panicked = recover()
		p.exited = !normal && p.panicked == nil
	}()
	time.Sleep(p.wait)
	p.rsp, p.err = call(context.WithValue(ctx, probeKey{}, p), p.req)
	normal = true
	if p.err == nil && !p.keepsBody {
		p.drain()
	}
}

// drain reads the response body to its end and closes it.
func (p *probe[Req, Rsp]) drain() {
	p.readAll()
	p.close()
}

// readAll reads the response body to its end.
func (p *probe[Req, Rsp]) readAll() {
	if body := p.subject.responses.bodyOf(p.rsp); body != nil {
		data, err := io.ReadAll(body)
		p.read, p.readErr = p.read+string(data), err
	}
}

// readSome reads up to four bytes of the response body.
func (p *probe[Req, Rsp]) readSome() {
	if body := p.subject.responses.bodyOf(p.rsp); body != nil {
		var buf [4]byte
		n, err := body.Read(buf[:])
		p.read, p.readErr = p.read+string(buf[:n]), err
	}
}

// close closes the response body.
func (p *probe[Req, Rsp]) close() {
	if body := p.subject.responses.bodyOf(p.rsp); body != nil {
		body.Close()
	}
}

// returned reports whether the call has returned. If so, the results in the fields after done may
// be read.
func (p *probe[Req, Rsp]) returned() bool { return isClosed(p.done) }

// isClosed reports whether c is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// served returns how often the inner service admitted the call.
func (p *probe[Req, Rsp]) served() int { return len(p.attempts()) }

// attempts returns a copy of the attempts so far.
func (p *probe[Req, Rsp]) attempts() []attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	attempts := make([]attempt, len(p.records))
	for i, a := range p.records {
		attempts[i] = *a
	}
	return attempts
}

// inner returns the context, the request and the response body of the last attempt at the
// inner service.
func (p *probe[Req, Rsp]) inner() (context.Context, Req, *responseBody) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ctx, p.innerReq, p.body
}

// checkSuccess returns an error unless the caller got the complete response. It compares
// the content of the body only if bodies is true.
func (p *probe[Req, Rsp]) checkSuccess(bodies bool) error {
	switch {
	case !p.returned():
		return errors.New("the call does not return")
	case p.panicked != nil:
		return fmt.Errorf("the call panicked: %v", p.panicked)
	case p.exited:
		return errors.New("the call ended its goroutine")
	case p.err != nil:
		return fmt.Errorf("the call failed: %w", p.err)
	case p.readErr != nil:
		return fmt.Errorf("reading the body failed: %w", p.readErr)
	case bodies && !p.noBody && !p.keepsBody && p.read != responseData(p.id):
		return fmt.Errorf("call %d read %q from the body, want %q", p.id, p.read, responseData(p.id))
	}
	if p.subject.isLayer() && !p.subject.RewritesMessages {
		if mismatch := p.subject.responses.mismatch(p.rsp, p.id); mismatch != "" {
			return fmt.Errorf("call %d got the response to another call: its %s differs", p.id, mismatch)
		}
	}
	return p.requestError()
}

// requestError returns an error if the inner service received another request than the
// caller sent.
func (p *probe[Req, Rsp]) requestError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mismatch
}

// inspect reads the request that the inner service got, and records whether it differs from the
// caller's request. It ignores differences if ctx has ended.
func (p *probe[Req, Rsp]) inspect(ctx context.Context, req Req) {
	if p.subject.RewritesMessages {
		return
	}
	err := p.compare(req)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mismatch == nil && err != nil && ctx.Err() == nil {
		p.mismatch = fmt.Errorf("the inner service got another request in attempt %d: %w", len(p.records), err)
	}
}

// compare returns an error if req, which has arrived at the inner service, is not the request that was
// sent.
func (p *probe[Req, Rsp]) compare(req Req) error {
	if mismatch := p.subject.requests.mismatch(req, p.id); mismatch != "" {
		return fmt.Errorf("its %s is not that of request %d", mismatch, p.id)
	}
	if !p.subject.requests.hasBody() {
		return nil
	}
	body := p.subject.requests.bodyOf(req)
	if body == nil {
		return errors.New("it has no body")
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("its body fails: %w", err)
	}
	if want := requestData(p.id); string(data) != want {
		return fmt.Errorf("its body is %q, want %q", data, want)
	}
	return nil
}
