package layer

import (
	"context"
	"net/netip"
	"sync"
)

// Facts describes how one request was served, as layers have reported it: its route, its endpoint,
// its attempts and its error. A field that was not reported is zero.
type Facts struct {
	Client   netip.Addr     // the address of the client, as a trusted proxy reported it
	Route    string         // the name of the route that was chosen last
	Target   string         // the target of the last attempt
	Endpoint netip.AddrPort // the endpoint of the last attempt
	Attempts int            // attempts that an endpoint admitted, retries and hedges included
	Err      error          // the error for which the client got an error response
}

// Record collects the [Facts] of one request, for an access log or a trace. The outermost
// layer adds it to the context by [WithRecord], and the layers below report facts to it.
// The methods of a nil *Record do nothing, so that layers need no check. It is safe for
// concurrent use.
type Record struct {
	mu    sync.Mutex
	facts Facts
}

// WithRecord returns a context in which layers report facts, and the [Record] that collects
// them. If ctx has a Record already, the result is ctx and that Record.
func WithRecord(ctx context.Context) (context.Context, *Record) {
	h := PickInfoFromContext(ctx)
	if h.Record != nil {
		return ctx, h.Record
	}
	h.Record = new(Record)
	return withPickInfo(ctx, h), h.Record
}

// RecordFromContext returns the Record of ctx, or nil if ctx has none.
func RecordFromContext(ctx context.Context) *Record { return PickInfoFromContext(ctx).Record }

// Facts returns the facts that were reported until now.
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

// SetRoute reports the name of the route. [WithRoute] calls it.
func (r *Record) SetRoute(name string) { r.set(func(f *Facts) { f.Route = name }) }

// SetErr reports the error for which the client gets an error response.
func (r *Record) SetErr(err error) { r.set(func(f *Facts) { f.Err = err }) }

// AddAttempt reports that a request was sent to an endpoint of the target with the name target.
// Balancers call it.
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
