package layertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing/synctest"
	"time"

	"github.com/gotower/gotower/layer"
)

// plan describes one call and how the inner service serves it.
type plan struct {
	wait      time.Duration // of the caller before the call
	delay     time.Duration // of the inner service before anything else
	hold      bool          // until release is called
	readFirst bool          // with hold: the request is read before the hold
	before    func()        // called before the outcome; may be nil
	panics    any           // the value of a panic
	exit      bool          // runtime.Goexit
	err       error         // the error of Call

	noBody    bool  // the response has no body
	bodyErr   error // returned by the body instead of io.EOF
	retryable bool  // the response is one of LayerOf.Retryable
	keep      bool  // the check reads and closes the response, instead of the caller

	each func(attempt int) plan // replaces the other fields except wait and keep; the first attempt is 1
}

// attempt is one call of the inner service.
type attempt struct {
	returned bool
	body     *responseBody // nil without a response with a body
}

type probeKey struct{}

// probe is a call under observation by its caller and by the inner service,
// which finds it in the context.
type probe[Req, Rsp any] struct {
	plan
	subject *subject[Req, Rsp]
	id      int
	req     Req
	sent    *requestBody

	released chan struct{}
	release  func()

	mu       sync.Mutex // guards the fields that the inner service sets
	all      []*attempt
	ctx      context.Context // of the last attempt, as got, body and gave
	got      Req
	body     *responseBody
	gave     Rsp
	mismatch error // the first difference between the request sent and received

	done     chan struct{} // closed when the fields below are set
	rsp      Rsp
	err      error  // of Call
	readErr  error  // of the body, except io.EOF
	read     string // from the body
	panicked any
	exited   bool
}

// start calls the subject in a new goroutine.
func (r *rig[Req, Rsp]) start(ctx context.Context, pl plan) *probe[Req, Rsp] {
	p := r.probe(pl)
	go p.run(ctx, r.svc.Call)
	return p
}

// call is start, followed by synctest.Wait.
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
	setBody[Req](p.req, p.sent)
	return p
}

// run is the goroutine of the caller. It keeps a panic from the program, and
// tells it from runtime.Goexit by the value of recover.
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

// drain reads the response to its end, and closes it.
func (p *probe[Req, Rsp]) drain() {
	p.readAll()
	p.close()
}

func (p *probe[Req, Rsp]) readAll() {
	if body := bodyOf(p.rsp); body != nil {
		data, err := io.ReadAll(body)
		p.read, p.readErr = p.read+string(data), err
	}
}

// readSome reads a first piece.
func (p *probe[Req, Rsp]) readSome() {
	if body := bodyOf(p.rsp); body != nil {
		var piece [4]byte
		n, err := body.Read(piece[:])
		p.read, p.readErr = p.read+string(piece[:n]), err
	}
}

func (p *probe[Req, Rsp]) close() {
	if body := bodyOf(p.rsp); body != nil {
		body.Close()
	}
}

// returned reports whether the fields of the caller may be read.
func (p *probe[Req, Rsp]) returned() bool { return isClosed(p.done) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// served returns the number of times that the inner service admitted the call.
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

// inner returns the arguments and the response body of the last attempt.
func (p *probe[Req, Rsp]) inner() (context.Context, Req, *responseBody) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ctx, p.got, p.body
}

// checkSuccess returns an error unless the caller got the complete response.
// The content of the body is compared only if bodies is set.
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
		if part := mismatch(p.rsp, p.subject.Response, p.id); part != "" {
			return fmt.Errorf("call %d got the response to another call: its %s differs", p.id, part)
		}
	}
	return p.requestError()
}

// requestError returns an error if the inner service received a request other
// than the one sent.
func (p *probe[Req, Rsp]) requestError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mismatch
}

// inspect reads a request as the inner service does, and compares it with the
// one sent. A canceled request may be incomplete.
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
	if part := mismatch(req, p.subject.Request, p.id); part != "" {
		return fmt.Errorf("its %s is not that of request %d", part, p.id)
	}
	if !layer.HasBody[Req]() {
		return nil
	}
	body := bodyOf(req)
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
