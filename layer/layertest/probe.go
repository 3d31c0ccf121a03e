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
	before    func()        // called before the call ends with one of the following outcomes; may be nil
	panics    any           // the value with which the inner service panics; nil for no panic
	exit      bool          // the inner service calls runtime.Goexit
	err       error         // the error that Call returns

	noBody    bool  // the response has no body
	bodyErr   error // the error that reading the body returns instead of io.EOF
	retryable bool  // the response is changed by LayerOf.Retryable
	keep      bool  // the check reads and closes the response body; otherwise probe.run does

	each func(attempt int) plan // returns the plan of the given attempt, counted from 1; wait and keep are not used
}

// attempt is one call of the inner service that the layer makes. A call of a check, which is a
// probe, can have several attempts.
type attempt struct {
	returned bool
	body     *responseBody // nil if the attempt returned no body
}

type probeKey struct{}

// probe is one call that a check makes. The caller and the inner service record the
// results of the call in the probe. The inner service gets the probe from the context.
type probe[Req, Rsp any] struct {
	plan
	subject *subject[Req, Rsp]
	id      int
	req     Req
	sent    *requestBody

	released chan struct{}
	release  func()

	mu       sync.Mutex // guards the following fields, which the inner service sets
	all      []*attempt
	ctx      context.Context // ctx, got, body and gave are those of the last attempt
	got      Req
	body     *responseBody
	gave     Rsp
	mismatch error // the first difference between the request sent and the one received

	done     chan struct{} // closed when the following fields are set
	rsp      Rsp
	err      error  // error of Call
	readErr  error  // error of the body, except io.EOF
	read     string // bytes from the body
	panicked any
	exited   bool
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

// run makes the call, on the goroutine of the caller, and records the result. It recovers a panic
// of the call, and notices if the call ended its goroutine by runtime.Goexit.
func (p *probe[Req, Rsp]) run(ctx context.Context, call func(context.Context, Req) (Rsp, error)) {
	defer close(p.done)
	normal := false
	defer func() {
		p.panicked = recover()
		p.exited = !normal && p.panicked == nil
	}()
	time.Sleep(p.wait)
	p.rsp, p.err = call(context.WithValue(ctx, probeKey{}, p), p.req)
	normal = true
	if p.err == nil && !p.keep {
		p.drain()
	}
}

// drain reads the response body to its end and closes it.
func (p *probe[Req, Rsp]) drain() {
	p.readAll()
	p.close()
}

func (p *probe[Req, Rsp]) readAll() {
	if body := p.subject.responses.bodyOf(p.rsp); body != nil {
		data, err := io.ReadAll(body)
		p.read, p.readErr = p.read+string(data), err
	}
}

// readSome reads up to four bytes of the response body.
func (p *probe[Req, Rsp]) readSome() {
	if body := p.subject.responses.bodyOf(p.rsp); body != nil {
		var piece [4]byte
		n, err := body.Read(piece[:])
		p.read, p.readErr = p.read+string(piece[:n]), err
	}
}

func (p *probe[Req, Rsp]) close() {
	if body := p.subject.responses.bodyOf(p.rsp); body != nil {
		body.Close()
	}
}

// returned reports whether the call has returned. If it has, the results in the fields after done
// may be read.
func (p *probe[Req, Rsp]) returned() bool { return isClosed(p.done) }

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

func (p *probe[Req, Rsp]) attempts() []attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]attempt, len(p.all))
	for i, a := range p.all {
		all[i] = *a
	}
	return all
}

// inner returns the context, the request and the response body of the last attempt at the
// inner service.
func (p *probe[Req, Rsp]) inner() (context.Context, Req, *responseBody) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ctx, p.got, p.body
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
	case bodies && !p.noBody && !p.keep && p.read != responseData(p.id):
		return fmt.Errorf("call %d read %q from the body, want %q", p.id, p.read, responseData(p.id))
	}
	if p.subject.isLayer() && !p.subject.RewritesMessages {
		if part := p.subject.responses.mismatch(p.rsp, p.id); part != "" {
			return fmt.Errorf("call %d got the response to another call: its %s differs", p.id, part)
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

// inspect reads the request that the inner service got, and records whether it differs from
// the request of the caller. It ignores differences if ctx has ended.
func (p *probe[Req, Rsp]) inspect(ctx context.Context, req Req) {
	if p.subject.RewritesMessages {
		return
	}
	err := p.compare(req)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mismatch == nil && err != nil && ctx.Err() == nil {
		p.mismatch = fmt.Errorf("the inner service got another request in attempt %d: %w", len(p.all), err)
	}
}

func (p *probe[Req, Rsp]) compare(req Req) error {
	if part := p.subject.requests.mismatch(req, p.id); part != "" {
		return fmt.Errorf("its %s is not that of request %d", part, p.id)
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
