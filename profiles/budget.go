package profiles

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
)

// mostAccounts is how many budgets of late a Router knows. One that comes back,
// after a profile without it or between those of two writers, has not grown.
const mostAccounts = 4

// account is a budget with what is in it.
type account struct {
	RetryBudget
	*layer.Budget
}

// account returns what the RetryBudget stands for in requests: nil without a
// valid one, and the account that it had of late, with what is in it. It is
// called with mu held.
func (r *Router[Req, Rsp]) account(p *Profile) *layer.Budget {
	b := p.RetryBudget
	if b == nil {
		return nil
	}
	if err := b.Validate(); err != nil {
		r.log.Warn("left out of a profile", "target", r.target, "err", err)
		return nil
	}
	if i := slices.IndexFunc(r.accounts, func(a account) bool { return a.RetryBudget == *b }); i >= 0 {
		known := r.accounts[i]
		r.accounts = append(slices.Delete(r.accounts, i, i+1), known)
		return known.Budget
	}
	// To NewBudget 0 is the default.
	ratio, perSecond := b.Ratio, int(b.MinPerSecond)
	if ratio == 0 {
		ratio = -1
	}
	if perSecond == 0 {
		perSecond = -1
	}
	fresh := account{*b, layer.NewBudget(b.TTL, ratio, perSecond)}
	if len(r.accounts) == mostAccounts {
		r.accounts = slices.Delete(r.accounts, 0, 1)
	}
	r.accounts = append(r.accounts, fresh)
	return fresh.Budget
}

// budgeted is what a route does within the budget. A route outlives profiles,
// so it asks that of the request, and is made anew when that is another one.
type budgeted[Req, Rsp any] struct {
	layer.Service[Req, Rsp] // below
	router                  *Router[Req, Rsp]
	make                    func(*layer.Budget) layer.Service[Req, Rsp]
	made                    atomic.Pointer[madeWith[Req, Rsp]] // nil before the first request
}

type madeWith[Req, Rsp any] struct {
	budget *layer.Budget
	layer.Service[Req, Rsp]
}

func (b *budgeted[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	s, _ := ctx.Value(b.router).(*snapshot[Req, Rsp])
	if s == nil {
		s = b.router.current.Load()
	}
	made := b.made.Load()
	if made == nil || made.budget != s.budget {
		made = b.remake(s, made)
	}
	return made.Service.Call(ctx, req)
}

// remake does not keep what is for a request that began with an older profile.
func (b *budgeted[Req, Rsp]) remake(s *snapshot[Req, Rsp], old *madeWith[Req, Rsp]) *madeWith[Req, Rsp] {
	made := &madeWith[Req, Rsp]{s.budget, b.make(s.budget)}
	if b.router.current.Load().budget != s.budget || b.made.CompareAndSwap(old, made) {
		return made
	}
	if other := b.made.Load(); other.budget == s.budget {
		return other
	}
	return made
}

// Next is what requests go to now.
func (b *budgeted[Req, Rsp]) Next() layer.Service[Req, Rsp] {
	if made := b.made.Load(); made != nil {
		return made.Service
	}
	return b.Service
}

// Describe says no more than that it is there: what the budget allows is the
// Router's to show, and Next is shown too.
func (b *budgeted[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "budgeted"} }
