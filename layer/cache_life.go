package layer

import (
	"context"

	"github.com/gotower/gotower/internal/uses"
)

// cacheLife is a service with a life: its responses count as open until they
// ended, and its context ends once it is retired and nothing is open.
type cacheLife[Req, Rsp any] struct {
	uses.Count
	complete Completion[Rsp]
}

// call has inner serve one request for which Begin was true.
func (l *cacheLife[Req, Rsp]) call(ctx context.Context, inner Service[Req, Rsp], req Req) (rsp Rsp, err error) {
	handed := false
	defer func() {
		if !handed {
			l.Done()
		}
	}()
	if rsp, err = inner.Call(ctx, req); err != nil {
		return rsp, err
	}
	rsp = l.complete(ctx, rsp, l)
	handed = true
	return rsp, nil
}

// Data and End make it the Observer of every response, so that none has to be
// made for each.
func (l *cacheLife[Req, Rsp]) Data(int) {}

func (l *cacheLife[Req, Rsp]) End(error) { l.Done() }
