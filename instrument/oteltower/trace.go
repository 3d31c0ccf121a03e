package oteltower

import (
	"cmp"
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// ServerTrace is a layer that starts a span of kind server for each request. The span's parent
// comes from the request header traceparent. You should place the layer outermost, in front of a
// gateway or a mux. The span tells the route, the target, the endpoint and how many attempts
// there were, if layers below report them to the request's [layer.Record].
//
// Admission, Cancellation, Body, Errors: as for [layer.Trace].
//
// Cost: layer.Trace, the span and a Record.
func ServerTrace(p trace.TracerProvider) httplayer.Layer {
	return traced(p, trace.SpanKindServer)
}

// ClientTrace is a layer that starts a span of kind client for each request. It sends the span
// context in the traceparent header. It should be above an endpoint, to trace each attempt, or
// above a client. It copies the request headers.
//
// Admission, Cancellation, Body, Errors: as for [layer.Trace].
//
// Cost: layer.Trace, the span and the copied headers.
func ClientTrace(p trace.TracerProvider) httplayer.Layer {
	return traced(p, trace.SpanKindClient)
}

// w3c reads and writes the headers traceparent and tracestate.
var w3c propagation.TraceContext

// traced returns a layer that traces requests by p. On a server it continues the trace of the request's
// headers, and on a client it writes them.
func traced(p trace.TracerProvider, kind trace.SpanKind) httplayer.Layer {
	if p == nil {
		panic("oteltower: nil TracerProvider")
	}
	tracer := p.Tracer(scope)
	// layer.Trace calls start for each request, and then the span's methods Head and End.
	start := func(ctx context.Context, req *http.Request) (context.Context, layer.Span[*http.Response]) {
		var a httplayer.HTTP
		var record *layer.Record
		// A server continues the caller's trace. A client's request already has its span in ctx.
		if kind == trace.SpanKindServer {
			ctx = w3c.Extract(ctx, propagation.HeaderCarrier(req.Header))
			// The layers below fill in the record, which End turns into attributes.
			ctx, record = layer.WithRecord(ctx)
		}
		ctx, s := tracer.Start(ctx, a.Method(req), trace.WithSpanKind(kind), trace.WithAttributes(
			attribute.String("http.request.method", a.Method(req)), attribute.String("url.scheme", a.Scheme(req)),
			attribute.String("server.address", a.Authority(req)), attribute.String("url.path", a.Path(req))))
		return ctx, &span{Span: s, record: record}
	}
	l := layer.Trace(start, layer.WithCompletion(httplayer.Completion), layer.WithClassifier(httplayer.Classify))
	// The injector is below layer.Trace, so that it finds the new span in ctx.
	return func(next httplayer.Service) httplayer.Service {
		if kind == trace.SpanKindClient {
			next = &injector{next}
		}
		return l(next)
	}
}

// injector adds the current span context to the headers in a copy of each request.
type injector struct{ httplayer.Service }

// Call sends a copy of req with the headers of the current span.
// A copy, because a caller may use its request for another attempt.
func (i *injector) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	out := *req
	if out.Header = req.Header.Clone(); out.Header == nil {
		out.Header = make(http.Header)
	}
	w3c.Inject(ctx, propagation.HeaderCarrier(out.Header))
	return i.Service.Call(ctx, &out)
}

// Next returns the service that the injector calls.
func (i *injector) Next() httplayer.Service { return i.Service }

// Describe returns a node named after the header, without state.
func (i *injector) Describe() layer.Node { return layer.Node{Name: "traceparent"} }

// span adapts a span of OpenTelemetry to layer.Span.
type span struct {
	trace.Span

	record *layer.Record // nil for a client span
}

// Head sets the status. It is called when the response headers have arrived.
func (s *span) Head(rsp *http.Response) {
	s.SetAttributes(attribute.Int("http.response.status_code", httplayer.HTTP{}.Status(rsp)))
}

// End ends the span, with the class and the error of the request.
func (s *span) End(c layer.Class, err error) {
	// Facts may be called on a nil record. A client has none.
	if facts := s.record.Facts(); s.record != nil {
		s.setFacts(facts)
	}
	// The class decides, not err: a response such as 503 is a failure without an error.
	if c.IsFailure() {
		s.SetStatus(codes.Error, c.String())
	}
	if err != nil {
		s.RecordError(err)
	}
	s.Span.End()
}

// setFacts sets the attributes that are known only at the end of a request.
func (s *span) setFacts(f layer.Facts) {
	// Facts that no layer has reported are zero, and are left out.
	if f.Client.IsValid() {
		s.SetAttributes(attribute.String("client.address", f.Client.String()))
	}
	// The gateway's route is more specific than the pattern of a mux.
	if route := cmp.Or(f.Route, f.Pattern); route != "" {
		s.SetAttributes(attribute.String("http.route", route))
	}
	// Without an attempt there is no endpoint.
	if f.Attempts > 0 {
		s.SetAttributes(attribute.String("gotower.target", f.Target),
			attribute.String("network.peer.address", f.Endpoint.String()), attribute.Int("gotower.attempts", f.Attempts))
	}
}
