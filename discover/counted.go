package discover

import (
	"context"

	"github.com/gotower/gotower/internal/uses"
	"github.com/gotower/gotower/layer"
)

// counted is a service whose responses count as open until they ended. Its
// context ends once it is retired and nothing is open.
type counted[Req, Rsp any] struct {
	uses.Count
	inner    layer.Service[Req, Rsp]
	complete layer.Completion[Rsp]
}

// call serves one request for which Begin was true.
func (c *counted[Req, Rsp]) call(ctx context.Context, req Req) (rsp Rsp, err error) {
	handed := false
	defer func() {
		if !handed {
			c.Done()
		}
	}()
	if rsp, err = c.inner.Call(ctx, req); err != nil {
		return rsp, err
	}
	handed = true
	return c.complete(ctx, rsp, c), nil
}

// Data and End make it the Observer of every response, so that none has to be
// made for each.
func (c *counted[Req, Rsp]) Data(int) {}

func (c *counted[Req, Rsp]) End(error) { c.Done() }
