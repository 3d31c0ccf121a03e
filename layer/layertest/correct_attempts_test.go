package layertest

import (
	"context"
	"errors"
	"time"

	"github.com/gotower/gotower/layer"
)

// resending makes up to n attempts, with a pause between them.
type resending struct {
	service
	n     int
	wrong fault
}

const (
	resendsOnceMore   fault = "makes one attempt more than declared"
	resendsCanceled   fault = "retries after ctx has ended"
	resendsAfterPause fault = "ignores ctx in the pause"
	resendsUnclosed   fault = "leaves bodies open"
	resendsClosed     fault = "closes the returned body"
	resendsBlind      fault = "retries rejections too often"
	resendsNever      fault = "does not return"
	resendsRejected   fault = "returns a rejection after a failure"
	resendsRead       fault = "sends the rest of the body"
)

const pauseOfRight = 10 * time.Millisecond

func resends(n int, wrong fault) Layer {
	l := Layer{
		Layer:       func(next service) service { return &resending{next, n, wrong} },
		MaxAttempts: n, Pause: 2 * pauseOfRight, Retryable: func(rsp *Response) { rsp.Header["again"] = "yes" },
	}
	return l
}

// resendable returns a function that makes copies of req, each with the whole
// body.
func resendable(req *Request) (copied func() *Request, body *layer.BodyReplay) {
	body = layer.ReplayBody(req.Body, nil, 1<<16)
	return func() *Request {
		again := *req
		again.Body, _ = body.Next()
		return &again
	}, body
}

func (r *resending) Call(ctx context.Context, req *Request) (*Response, error) {
	wasSent, sent := false, error(nil)
	copied, _ := resendable(req)
	if r.wrong == resendsRead {
		copied = func() *Request { return req }
	}
	for attempt := 1; ; attempt++ {
		rsp, err := r.service.Call(ctx, copied())
		rejected := errors.Is(err, layer.ErrNotReady)
		if !rejected {
			wasSent, sent = true, err
		}
		if !r.again(ctx, attempt, rsp, err) {
			if rejected && wasSent && r.wrong != resendsRejected {
				return nil, errors.Join(layer.ErrRetryRejected, sent)
			}
			return r.last(rsp, err)
		}
		if err == nil && r.wrong != resendsUnclosed {
			rsp.Body.Close()
		}
		select {
		case <-time.After(pauseOfRight):
		case <-r.doneOf(ctx):
			return nil, errors.Join(context.Cause(ctx), sent)
		}
		if r.wrong == resendsAfterPause && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

func (r *resending) last(rsp *Response, err error) (*Response, error) {
	if r.wrong == resendsClosed && err == nil && rsp.Body != nil {
		rsp.Body.Close()
	}
	return rsp, err
}

func (r *resending) doneOf(ctx context.Context) <-chan struct{} {
	if r.wrong == resendsCanceled || r.wrong == resendsAfterPause {
		return nil
	}
	return ctx.Done()
}

func (r *resending) again(ctx context.Context, attempt int, rsp *Response, err error) bool {
	n := r.n
	if r.wrong == resendsOnceMore {
		n++
	}
	switch {
	case ctx.Err() != nil && r.wrong != resendsCanceled, errors.Is(err, layer.ErrClosed):
		return false
	case r.wrong == resendsBlind && errors.Is(err, layer.ErrNotReady):
		return attempt < 10*n
	case attempt >= n:
		return r.wrong == resendsNever
	}
	return errors.Is(err, layer.ErrNotReady) || errors.Is(err, errRetryable) || err == nil && rsp.Header["again"] != ""
}

// hedging sends a copy of a request without a timely response.
type hedging struct {
	service
	wrong fault
}

const (
	hedgesOn       fault = "does not cancel the loser"
	hedgesUnclosed fault = "does not close the loser's response"
	hedgesWinner   fault = "cancels the winner"
	hedgesForFirst fault = "waits for the first attempt"
)

func hedges(wrong fault) Layer {
	return Layer{
		Layer:       func(next service) service { return &hedging{next, wrong} },
		MaxAttempts: 2, Pause: pauseOfRight,
	}
}

type hedged struct {
	attempt int
	rsp     *Response
	err     error
}

func (h *hedging) Call(ctx context.Context, req *Request) (*Response, error) {
	answers := make(chan hedged, 2)
	var cancels []context.CancelCauseFunc
	copied, body := resendable(req)
	send := func() {
		again := copied()
		own, cancel := context.WithCancelCause(ctx)
		attempt := len(cancels)
		cancels = append(cancels, cancel)
		go func() {
			rsp, err := h.service.Call(own, again)
			answers <- hedged{attempt, rsp, err}
		}()
	}
	send()
	var won hedged
	select {
	case won = <-answers:
		return won.rsp, won.err
	case <-time.After(pauseOfRight / 2):
	}
	if !body.Whole() {
		won = <-answers
		return won.rsp, won.err
	}
	send()
	won = <-answers
	if h.wrong == hedgesForFirst && won.attempt > 0 {
		won = <-answers
		answers <- hedged{err: errCancel}
	}
	for attempt, cancel := range cancels {
		if h.wrong != hedgesOn && (attempt != won.attempt || h.wrong == hedgesWinner) {
			cancel(errCancel)
		}
	}
	if h.wrong != hedgesUnclosed {
		go func() {
			if lost := <-answers; lost.err == nil {
				lost.rsp.Body.Close()
			}
		}()
	}
	return won.rsp, won.err
}
