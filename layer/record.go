package layer

import (
	"context"
	"net/netip"
	"sync"

	"github.com/gotower/gotower/internal/reqctx"
)

// Facts describes how a request was served, as far as layers have reported it: its route,
// endpoint, attempts and error. Fields that were not reported are zero.
type Facts struct {
	Client   netip.Addr     // the address of the client, as a trusted proxy reported it
	Trace    string         // the ID of the trace of the request
	Route    string         // the name of the route that was chosen last
	Pattern  string         // the pattern by which an http.ServeMux chose the handler
	Target   string         // the target of the last attempt
	Endpoint netip.AddrPort // the endpoint of the last attempt
	Attempts int            // attempts that an endpoint admitted, retries and hedges included
	Err      error          // the error for which the client got an error response
}

// Record collects the [Facts] about a request, usually for an access log or a trace. The
// outermost layer adds it to the context with [WithRecord], and the layers below report facts to
// it. The methods of a nil *Record do nothing, so that layers need no check. It is safe for
// concurrent use.
type Record struct {
	mu    sync.Mutex
	facts Facts
}

// WithRecord returns a context in which layers report facts, and the [Record] that collects them.
// If ctx already carries a Record, WithRecord returns ctx and that Record.
func WithRecord(ctx context.Context) (context.Context, *Record) {
	info := PickInfoFromContext(ctx)
	// An outer layer collects the facts already.
	if info.Record != nil {
		return ctx, info.Record
	}
	c := &recordContext{Wrapper: reqctx.Wrapper{Context: ctx}, info: info}
	c.info.Record = &c.record
	return c, &c.record
}

// recordContext is the context that [WithRecord] returns, and its Record, in one allocation.
type recordContext struct {
	reqctx.Wrapper
	info   PickInfo
	record Record
}

// Value returns the PickInfo with the Record, and otherwise the value in the caller's context.
func (c *recordContext) Value(key any) any {
	if key == (reqctx.PickInfoKey{}) {
		return &c.info
	}
	return c.Context.Value(key)
}

// RecordFromContext returns ctx's Record, or nil if there is none.
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

// set lets f change the facts. It does nothing for a nil Record.
func (r *Record) set(f func(*Facts)) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.facts)
}

// SetClient reports the client's address.
func (r *Record) SetClient(addr netip.Addr) { r.set(func(f *Facts) { f.Client = addr }) }

// SetTrace reports the ID of the request's trace.
func (r *Record) SetTrace(id string) { r.set(func(f *Facts) { f.Trace = id }) }

// SetRoute reports the route name. [WithRoute] calls it.
func (r *Record) SetRoute(name string) { r.set(func(f *Facts) { f.Route = name }) }

// SetPattern reports the pattern by which an http.ServeMux chose the handler.
func (r *Record) SetPattern(pattern string) { r.set(func(f *Facts) { f.Pattern = pattern }) }

// SetErr reports the error for which the client gets an error response.
func (r *Record) SetErr(err error) { r.set(func(f *Facts) { f.Err = err }) }

// AddAttempt reports that a request was sent to an endpoint of the target with the name target.
// Balancers call it.
func (r *Record) AddAttempt(target string, endpoint netip.AddrPort) {
	if r != nil {
		r.addAttempt(target, endpoint)
	}
}

// addAttempt counts an attempt at the given target and endpoint, and records them as those of the last attempt.
func (r *Record) addAttempt(target string, endpoint netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.facts.Target, r.facts.Endpoint = target, endpoint
	r.facts.Attempts++
}
