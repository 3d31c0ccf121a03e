package layer

import (
	"context"
	"net/netip"
	"sync"
)

// Facts is what layers have reported about one request. Unknown fields are zero.
type Facts struct {
	Client   netip.Addr     // the client, behind trusted proxies
	Route    string         // the name of the last route
	Target   string         // the target of the last attempt
	Endpoint netip.AddrPort // the endpoint of the last attempt
	Attempts int            // attempts that an endpoint admitted, retries and hedges included
	Err      error          // the error that the client got a response for
}

// Record collects the [Facts] of one request, for an access log or a trace. The outermost
// layer adds it to the context by [WithRecord]. A nil *Record drops all facts, so that
// layers need no check. It is safe for concurrent use.
type Record struct {
	mu    sync.Mutex
	facts Facts
}

// WithRecord returns a context in which layers report facts to the returned Record. If ctx
// has one already, that one is returned.
func WithRecord(ctx context.Context) (context.Context, *Record) {
	h := PickInfoFromContext(ctx)
	if h.Record != nil {
		return ctx, h.Record
	}
	h.Record = new(Record)
	return withPickInfo(ctx, h), h.Record
}

// RecordFromContext returns the Record of ctx, or nil.
func RecordFromContext(ctx context.Context) *Record { return PickInfoFromContext(ctx).Record }

// Facts returns what was reported until now.
func (r *Record) Facts() Facts {
	if r == nil {
		return Facts{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.facts
}

func (r *Record) set(f func(*Facts)) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.facts)
}

// SetClient reports the address of the client.
func (r *Record) SetClient(addr netip.Addr) { r.set(func(f *Facts) { f.Client = addr }) }

// SetRoute reports the name of the route. [WithRoute] does this.
func (r *Record) SetRoute(name string) { r.set(func(f *Facts) { f.Route = name }) }

// SetErr reports the error that the client got a response for.
func (r *Record) SetErr(err error) { r.set(func(f *Facts) { f.Err = err }) }

// AddAttempt reports an attempt at an endpoint of target. Balancers do this.
func (r *Record) AddAttempt(target string, endpoint netip.AddrPort) {
	if r != nil {
		r.addAttempt(target, endpoint)
	}
}

func (r *Record) addAttempt(target string, endpoint netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.facts.Target, r.facts.Endpoint = target, endpoint
	r.facts.Attempts++
}
