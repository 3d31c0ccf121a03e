package discover

import (
	"context"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
)

// uses counts what is open in a service. Once the service is not wanted any
// more it lets nothing new begin, and ends the service's context when the last
// of what was open is done.
//
// All of it is one word, so that beginning costs one atomic addition:
//
//	bits 63..32  how many ever began (it may wrap round)
//	bit  31      gone: nothing begins any more
//	bits 30..0   how many are open
//
// The upper half tells a sweeper that a service was used since it last looked,
// without a clock being read for every call.
type uses struct {
	word atomic.Uint64
	end  context.CancelFunc
}

const (
	began    = 1<<32 | 1
	gone     = 1 << 31
	openMask = gone - 1
)

// begin reports whether one more may begin. If so, done must follow.
func (u *uses) begin() bool {
	if u.word.Add(began)&gone == 0 {
		return true
	}
	u.done()
	return false
}

func (u *uses) done() {
	if u.word.Add(^uint64(0))&(gone|openMask) == gone {
		u.end()
	}
}

// retire lets nothing new begin.
func (u *uses) retire() {
	if u.word.Or(gone)&openMask == 0 {
		u.end()
	}
}

// retireUnused retires if nothing began or ended since the word was seen and
// nothing is open, and reports whether it did.
func (u *uses) retireUnused(seen uint64) bool {
	if seen&openMask != 0 || !u.word.CompareAndSwap(seen, seen|gone) {
		return false
	}
	u.end()
	return true
}

func (u *uses) open() int64 { return int64(u.word.Load() & openMask) }

func (u *uses) isGone() bool { return u.word.Load()&gone != 0 }

// counted is a service whose responses count as open until they ended.
type counted[Req, Rsp any] struct {
	uses
	inner    layer.Service[Req, Rsp]
	complete layer.Completion[Rsp]
}

// call serves one request for which begin was true.
func (c *counted[Req, Rsp]) call(ctx context.Context, req Req) (rsp Rsp, err error) {
	handed := false
	defer func() {
		if !handed {
			c.done()
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

func (c *counted[Req, Rsp]) End(error) { c.done() }

func refusal(target, endpoint string, kind error, reason string, cause error) error {
	return &layer.Error{Layer: "discover", Target: target, Endpoint: endpoint, Kind: kind, Reason: reason, Err: cause}
}
