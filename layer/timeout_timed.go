package layer

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"
)

// timeLimit is what the requests under a limit have in common.
type timeLimit struct {
	name    string // of the layer
	target  string // what the layer works for
	what    string // the limit, in words: what stands before its length,
	of      string // and what stands behind it
	is      error  // its kind
	expired tally
}

// overrun is a limit that ran out: the cause of the contexts that it ended.
type overrun struct {
	*timeLimit
	after time.Duration // how long it was
}

func (o *overrun) Error() string { return o.what + " of " + o.after.String() + o.of + " is over" }
func (o *overrun) Unwrap() error { return o.is }

// ended reports whether this limit is what ended ctx.
func (o *overrun) ended(ctx context.Context) bool {
	return ctx.Err() != nil && context.Cause(ctx) == error(o)
}

// wrap says of an error that it came after the limit ran out.
func (o *overrun) wrap(err error) error {
	return &Error{Layer: o.name, Target: o.target, Kind: o.is, Waited: o.after, Err: err}
}

func (l *timeLimit) node(after time.Duration) Node {
	s := State{{"after", after}}
	if n := l.expired.n.Load(); n > 0 {
		s = append(s, Attr{"expired", n})
	}
	return Node{Name: strings.ReplaceAll(l.name, " ", "_"), State: s}
}

// timed is a request under a limit, in one allocation: its context, the
// Observer of its response, and the reader of the response's body, which says
// of an error why it came.
type timed struct {
	expiry
	io.ReadCloser
	over *overrun
}

func (r *timed) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && err != io.EOF && r.expired() { //nolint:errorlint // a Reader ends with just this value
		err = r.over.wrap(err)
	}
	return n, err
}

// End counts the limit if it was what ended the body.
func (r *timed) End(err error) {
	defer r.expiry.End(err)
	if err != nil && !errors.Is(err, ErrBodyClosedEarly) && r.expired() {
		r.over.expired.inc()
	}
}

// timedAsked is the Observer of a response under a limit, of which nobody reads
// a body.
type timedAsked struct {
	over   *overrun
	ctx    context.Context //nolint:containedctx // it tells who ended the response
	cancel context.CancelFunc
}

func (timedAsked) Data(int) {}

func (r timedAsked) End(err error) {
	defer r.cancel()
	if err != nil && !errors.Is(err, ErrBodyClosedEarly) && r.over.ended(r.ctx) {
		r.over.expired.inc()
	}
}

// callTimed calls next with the context of r, and lets that go when the
// response ended.
func callTimed[Req, Rsp any](
	next Service[Req, Rsp], req Req, r *timed, opts *options[Rsp], seam bodySeam[Rsp],
) (rsp Rsp, err error) {
	handed := false
	defer func() {
		if !handed {
			defer r.expiry.End(nil)
			opts.drop(rsp, err)
		}
	}()
	rsp, err = next.Call(&r.expiry, req)
	if err == nil && r.kind == soft && !r.lift() && seam.closeBody(rsp) {
		// Nobody could read it: its context has ended.
		var none Rsp
		rsp, err = none, r.over
	}
	if err != nil {
		if r.expired() {
			r.over.expired.inc()
			err = r.over.wrap(err)
		}
		return rsp, err
	}
	rsp = opts.complete(&r.expiry, rsp, r)
	handed = true
	if b := seam.observed(rsp); b != nil {
		r.ReadCloser, b.ReadCloser = b.ReadCloser, r
	}
	return rsp, nil
}
