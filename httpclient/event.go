package httpclient

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// Event is what happened to a request, an endpoint or the target of a [Client].
type Event struct {
	Kind     EventKind
	Target   string
	Endpoint string        // the address; "" if there is none
	Attempts int           // for Retried: how often the request was sent
	Request  *http.Request // for Retried, Rejected and Failed; must not be modified or kept
	Err      error         // why; nil for Retried with a response, EndpointUp and TargetUp
}

// EventKind is the kind of an [Event].
type EventKind uint8

// The kinds of Event.
const (
	Retried      EventKind = iota + 1 // a request was sent more than once, hedges included
	Rejected                          // a request was not sent, for example because no endpoint is ready
	Failed                            // a request was sent and has no response
	EndpointDown                      // see package balance for this and the following ones
	EndpointEjected
	EndpointUp
	TargetDown // no endpoint is ready
	TargetUp
)

// String returns a text for a log message, such as "request retried".
func (k EventKind) String() string {
	switch k { //nolint:exhaustive // the others are those of package balance
	case Retried:
		return "request retried"
	case Rejected:
		return "request rejected"
	case Failed:
		return "request failed"
	}
	// The kinds from EndpointDown on have the same order in package balance.
	return (balance.EndpointDown + balance.EventKind(k-EndpointDown)).String()
}

// WithEvents calls f for each [Event]. A request's events are reported before its response is returned,
// and f may be called concurrently for them. Those of endpoints and the target are reported in their
// order; see [balance.Config]. A nil f panics. Several functions are all called.
func WithEvents(f func(Event)) Option {
	if f == nil {
		panic("httpclient: WithEvents: nil function")
	}
	return func(o *options) {
		// A second WithEvents or WithLogger must not replace the first.
		first := o.events
		if o.events = f; first != nil {
			o.events = func(e Event) { first(e); f(e) }
		}
	}
}

// WithLogger logs events about endpoints and the target: EndpointEjected, EndpointDown and TargetDown as warnings, and
// EndpointUp and TargetUp for information. Events about requests are logged for debugging, because a failing service
// causes many. A combination of options that may overload the service is logged as a warning when the Client is made. A nil
// logger panics.
func WithLogger(l *slog.Logger) Option {
	if l == nil {
		panic("httpclient: WithLogger: nil logger")
	}
	events := WithEvents(func(e Event) {
		level := slog.LevelWarn
		switch e.Kind { //nolint:exhaustive // the others are warnings
		case Retried, Rejected, Failed:
			level = slog.LevelDebug
		case EndpointUp, TargetUp:
			level = slog.LevelInfo
		}
		ctx := context.Background()
		if e.Request != nil {
			ctx = e.Request.Context()
		}
		if !l.Enabled(ctx, level) {
			return
		}
		attrs := []slog.Attr{slog.String("target", e.Target)}
		if e.Endpoint != "" {
			attrs = append(attrs, slog.String("endpoint", e.Endpoint))
		}
		if e.Request != nil {
			attrs = append(attrs, slog.String("method", e.Request.Method), slog.String("path", e.Request.URL.Path))
		}
		if e.Attempts > 0 {
			attrs = append(attrs, slog.Int("attempts", e.Attempts))
		}
		if e.Err != nil {
			attrs = append(attrs, slog.String("error", e.Err.Error()))
		}
		l.LogAttrs(ctx, level, e.Kind.String(), attrs...) //nolint:sloglint // one of eight constant texts
	})
	return func(o *options) {
		o.log = l
		events(o)
	}
}

// observeRequests returns a layer that reports requests that were retried, rejected or failed to the function of
// WithEvents.
func (o *options) observeRequests(target string) httplayer.Layer {
	return func(next httplayer.Service) httplayer.Service { return &observed{next, o.events, target} }
}

// observed is the service that observeRequests makes: it calls the service below, and reports to
// events what happened.
type observed struct {
	httplayer.Service
	events func(Event)
	target string
}

// Next returns the service below, so that [layer.Describe] can follow the chain of layers.
func (s *observed) Next() httplayer.Service { return s.Service }

// Describe returns the name of this layer for [layer.Describe], without any state.
func (s *observed) Describe() layer.Node { return layer.Node{Name: "events"} }

// Call sends req and reports the events of the request.
func (s *observed) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	// Layers below record the attempts. A layer above may have begun the record, so earlier ones are
	// not counted.
	ctx, record := layer.WithRecord(ctx)
	earlier := record.Facts().Attempts
	rsp, err := s.Service.Call(ctx, req)
	facts := record.Facts()
	e := Event{Target: s.target, Attempts: facts.Attempts - earlier, Request: req, Err: err}
	if facts.Endpoint.IsValid() {
		e.Endpoint = facts.Endpoint.String()
	}
	if e.Attempts > 1 {
		e.Kind = Retried
		s.events(e)
	}
	switch {
	case err == nil:
		return rsp, nil
	case errors.Is(err, layer.ErrNotReady):
		e.Kind = Rejected
	default:
		e.Kind = Failed
	}
	s.events(e)
	return rsp, err
}

// observeEndpoints returns a function that converts the balancer's events to those of the Client.
func (o *options) observeEndpoints() func(balance.Event) {
	events := o.events
	return func(b balance.Event) {
		// The kinds after EndpointDown have the same order in both packages.
		e := Event{Kind: EndpointDown + EventKind(b.Kind-balance.EndpointDown), Target: b.Target, Err: b.Err}
		if b.ID.Addr.IsValid() {
			e.Endpoint = b.ID.Addr.String()
		}
		events(e)
	}
}
