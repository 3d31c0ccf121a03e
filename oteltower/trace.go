package oteltower

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// ServerTrace is a layer that starts a span of kind server for each request. The parent of
// the span is the span context in the traceparent header of the request. Place the layer
// outermost, in front of a gateway or a mux. The span has the route, the target, the
// endpoint and the number of attempts, if layers below report them to the [layer.Record] of
// the request.
//
// Admission, Cancellation, Body, Errors: as for [layer.Trace].
//
// Cost: the cost of layer.Trace, of the span and of a Record.
func ServerTrace(p trace.TracerProvider) httplayer.Layer {
	return traced(p, trace.SpanKindServer)
}

// ClientTrace is a layer that starts a span of kind client for each request. It sends the
// context of the span in the traceparent header. Place it above an endpoint, to trace each
// attempt, or above a client. It copies the headers of each request.
//
// Admission, Cancellation, Body, Errors: as for [layer.Trace].
//
// Cost: the cost of layer.Trace, of the span and of the copied headers.
func ClientTrace(p trace.TracerProvider) httplayer.Layer {
	return traced(p, trace.SpanKindClient)
}

var w3c propagation.TraceContext

func traced(p trace.TracerProvider, kind trace.SpanKind) httplayer.Layer {
	if p == nil {
		panic("oteltower: nil TracerProvider")
	}
	tracer := p.Tracer(scope)
	start := func(ctx context.Context, req *http.Request) (context.Context, layer.Span[*http.Response]) {
		var a httplayer.Accessor
		var record *layer.Record
		if kind == trace.SpanKindServer {
			ctx = w3c.Extract(ctx, propagation.HeaderCarrier(req.Header))
			ctx, record = layer.WithRecord(ctx)
		}
		ctx, s := tracer.Start(ctx, a.Method(req), trace.WithSpanKind(kind), trace.WithAttributes(
			attribute.String("http.request.method", a.Method(req)), attribute.String("url.scheme", a.Scheme(req)),
			attribute.String("server.address", a.Authority(req)), attribute.String("url.path", a.Path(req))))
		return ctx, &span{Span: s, record: record}
	}
	l := layer.Trace(start, layer.WithCompletion(httplayer.Completion), layer.WithClassifier(httplayer.Classify))
	return func(next httplayer.Service) httplayer.Service {
		if kind == trace.SpanKindClient {
			next = &injector{next}
		}
		return l(next)
	}
}

// injector adds the context of the current span to the headers of a copy of each request.
type injector struct{ httplayer.Service }

func (i *injector) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	out := *req
	if out.Header = req.Header.Clone(); out.Header == nil {
		out.Header = make(http.Header)
	}
	w3c.Inject(ctx, propagation.HeaderCarrier(out.Header))
	return i.Service.Call(ctx, &out)
}

func (i *injector) Next() httplayer.Service { return i.Service }

func (i *injector) Describe() layer.Node { return layer.Node{Name: "traceparent"} }

// span adapts a span of OpenTelemetry to layer.Span.
type span struct {
	trace.Span

	record *layer.Record // nil for a client span
}

func (s *span) Head(rsp *http.Response) {
	s.SetAttributes(attribute.Int("http.response.status_code", httplayer.Accessor{}.Status(rsp)))
}

func (s *span) End(c layer.Class, err error) {
	if facts := s.record.Facts(); s.record != nil {
		s.setFacts(facts)
	}
	if c.IsFailure() {
		s.SetStatus(codes.Error, c.String())
	}
	if err != nil {
		s.RecordError(err)
	}
	s.Span.End()
}

func (s *span) setFacts(f layer.Facts) {
	if f.Client.IsValid() {
		s.SetAttributes(attribute.String("client.address", f.Client.String()))
	}
	if f.Route != "" {
		s.SetAttributes(attribute.String("http.route", f.Route))
	}
	if f.Attempts > 0 {
		s.SetAttributes(attribute.String("gotower.target", f.Target),
			attribute.String("network.peer.address", f.Endpoint.String()), attribute.Int("gotower.attempts", f.Attempts))
	}
}
