package layertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// plan is what one call is to meet at the inner service.
type plan struct {
	takes  time.Duration // the inner service works this long first
	holds  bool          // then until release is called
	early  bool          // with holds: the inner service reads the request before it waits
	fails  error         // then it returns this error,
	panics any           // or panics with this value,
	exits  bool          // or ends its goroutine
	bare   bool          // the response has no body
	breaks error         // the body ends with this error
	keep   bool          // the response is left to the check; by default its caller drains and closes it,
	reads  time.Duration // which takes so long
	before func()        // called just before the inner service answers; may be nil
	again  bool          // the response is one to send the request again for, where there are such

	each func(try int) plan // replaces the rest, with a plan for each attempt, from 1
}

// tried is one try of a call at the inner service.
type tried struct {
	returned bool          // the inner service has done with it, but for the body
	body     *responseBody // nil if there was no response with a body
}

type probeKey struct{}

// probe is one call, seen from both of its ends. It travels to the inner
// service in the context.
type probe[Req, Rsp any] struct {
	plan
	of   *subject[Req, Rsp]
	id   int
	req  Req
	sent *requestBody

	released chan struct{}
	release  func()

	mu   sync.Mutex // guards what the inner service saw
	seen int        // how many times it was asked to serve this call
	all  []*tried   // each time
	turn int        // as which one, in the order of admission
	ctx  context.Context
	got  Req
	body *responseBody
	gave Rsp
	lies error // the first difference between the request sent and received

	done     chan struct{} // closed when the caller is through
	rsp      Rsp
	err      error // what Call returned
	readErr  error // what reading the body returned, but for io.EOF
	read     string
	panicked any
	exited   bool
}

// call calls the service under test in a goroutine of its own.
func (r *rig[Req, Rsp]) call(ctx context.Context, pl plan) *probe[Req, Rsp] {
	p := r.probe(pl)
	go p.run(ctx, r.svc.Call)
	return p
}

// do calls, and lets everything happen that happens without time passing.
func (r *rig[Req, Rsp]) do(ctx context.Context, pl plan) *probe[Req, Rsp] {
	p := r.call(ctx, pl)
	settle()
	return p
}

func (r *rig[Req, Rsp]) probe(pl plan) *probe[Req, Rsp] {
	id := int(r.calls.Add(1))
	p := &probe[Req, Rsp]{
		plan: pl, of: r.subject, id: id, req: r.request(id), sent: newRequestBody(id),
		released: make(chan struct{}), done: make(chan struct{}),
	}
	p.release = sync.OnceFunc(func() { close(p.released) })
	if hasBody[Req]() {
		setBody[Req](p.req, p.sent)
	}
	return p
}

// run is the goroutine of one caller. A panic must not end the program, and is
// told from runtime.Goexit by what recover returns.
func (p *probe[Req, Rsp]) run(ctx context.Context, call func(context.Context, Req) (Rsp, error)) {
	defer close(p.done)
	normal := false
	defer func() {
		p.panicked = recover()
		p.exited = !normal && p.panicked == nil
	}()
	p.rsp, p.err = call(context.WithValue(ctx, probeKey{}, p), p.req)
	normal = true
	if p.err == nil && !p.keep {
		time.Sleep(p.reads)
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

// returned reports whether the caller is through. What the caller has written
// may be read only after it says so.
func (p *probe[Req, Rsp]) returned() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// failed reports whether the caller got an error, from Call or from the body.
func (p *probe[Req, Rsp]) failed() bool { return p.err != nil || p.readErr != nil }

// served returns how many times the inner service let the call in.
func (p *probe[Req, Rsp]) served() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// tries returns the outcomes of the calls of the inner service.
func (p *probe[Req, Rsp]) tries() []tried {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]tried, len(p.all))
	for i, t := range p.all {
		all[i] = *t
	}
	return all
}

// inner returns what the inner service was given, the last time.
func (p *probe[Req, Rsp]) inner() (context.Context, Req, *responseBody) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ctx, p.got, p.body
}

// well returns an error unless the call was served once and answered in full.
func (p *probe[Req, Rsp]) well(bodies bool) error {
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
	case bodies && !p.bare && !p.keep && p.read != responseData(p.id):
		return fmt.Errorf("call %d read %q from the body, want %q", p.id, p.read, responseData(p.id))
	}
	if err := p.asAnswered(); err != nil {
		return err
	}
	return p.asSent()
}

// asAnswered returns an error unless the response is the one to this call.
func (p *probe[Req, Rsp]) asAnswered() error {
	if !p.of.layer || p.of.rewrites {
		return nil
	}
	if what := mistaken(p.rsp, p.of.response, p.id); what != "" {
		return fmt.Errorf("the answer to call %d is not its own: its %s is another", p.id, what)
	}
	return nil
}

// asSent returns an error unless the inner service received the request as it
// was sent.
func (p *probe[Req, Rsp]) asSent() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lies
}

// inspect reads a request as the inner service does, and compares it with the
// one that was sent. A canceled request may be incomplete.
func (p *probe[Req, Rsp]) inspect(ctx context.Context, req Req) {
	if p.of.rewrites {
		return
	}
	err := p.compare(req)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lies == nil && err != nil && ctx.Err() == nil {
		p.lies = fmt.Errorf("the inner service was given another request, in try %d: %w", p.seen, err)
	}
}

func (p *probe[Req, Rsp]) compare(req Req) error {
	if what := mistaken(req, p.of.request, p.id); what != "" {
		return fmt.Errorf("its %s is not that of request %d", what, p.id)
	}
	if !hasBody[Req]() {
		return nil
	}
	body := bodyOf(req)
	if body == nil {
		return errors.New("it has lost its body")
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("its body breaks: %w", err)
	}
	if want := requestData(p.id); string(data) != want {
		return fmt.Errorf("its body reads as %q, want %q", data, want)
	}
	return nil
}
