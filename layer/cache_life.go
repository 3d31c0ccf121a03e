package layer

import (
	"context"

	"github.com/gotower/gotower/internal/uses"
)

// cacheLife is a service with a life: its responses count as open until they
// ended, and its context ends once it is retired and nothing is open.
type cacheLife[Req, Rsp any] struct {
	uses.Count
	options *options[Rsp]
}

// call has inner serve one request for which Begin was true.
func (l *cacheLife[Req, Rsp]) call(ctx context.Context, inner Service[Req, Rsp], req Req) (Rsp, error) {
	return callUntil(ctx, inner, req, l.options, l)
}

// Data and End make it the Observer of every response, so that none has to be
// made for each.
func (l *cacheLife[Req, Rsp]) Data(int) {}

func (l *cacheLife[Req, Rsp]) End(error) { l.Done() }
