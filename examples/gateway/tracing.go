package main

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/internal/spans"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// tracing continues or begins each request's trace, and sends sampled spans to an OTLP receiver.
// A nil *tracing does nothing.
type tracing struct {
	config.Tracing

	exporter *spans.Exporter
}

// newTracing returns the tracing that c configures, or nil if c is nil.
func newTracing(c *config.Tracing, registry prometheus.Registerer, log *slog.Logger) *tracing {
	if c == nil {
		return nil
	}
	t := &tracing{Tracing: *c, exporter: spans.New(spans.Config{
		Send: spans.HTTP(string(c.Endpoint)), Log: log, Scope: "github.com/gotower/gotower/examples/gateway",
		Resource: []spans.Attribute{spans.String("service.name", string(c.ServiceName))},
	})}
	// The counts belong to the exporter, so they are read when a client scrapes.
	for outcome, count := range map[string]func(spans.Counts) uint64{
		"sent":    func(c spans.Counts) uint64 { return c.Sent },
		"failed":  func(c spans.Counts) uint64 { return c.Failed },
		"dropped": func(c spans.Counts) uint64 { return c.Dropped },
	} {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "gateway_spans_total", ConstLabels: prometheus.Labels{"outcome": outcome},
			Help: "Ended spans by outcome: sent to the receiver, failed, or dropped because too many wait.",
		}, func() float64 { return float64(count(t.exporter.Counts())) }))
	}
	return t
}

// run sends spans until ctx ends, and then those that are still waiting.
func (t *tracing) run(ctx context.Context) { t.exporter.Run(ctx) }

// traceKey is the context key for a request's or attempt's *spans.Context.
type traceKey struct{}

func traceOf(ctx context.Context) *spans.Context {
	c, _ := ctx.Value(traceKey{}).(*spans.Context)
	return c
}

// begin returns a layer that begins a span for each request and puts it into the request's
// traceparent header. The access log shows the trace ID.
func (t *tracing) begin() httplayer.Layer {
	if t == nil {
		return nil
	}
	return func(next httplayer.Service) httplayer.Service { return &traceBeginner{next, t} }
}

// traceBeginner is the service of [tracing.begin].
type traceBeginner struct {
	httplayer.Service

	tracing *tracing
}

// Call sends req with a new span in its headers, which is a child of the client's if req has one.
func (s *traceBeginner) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	parent, ok := spans.Parse(req.Header)
	// The client's own decision to sample is kept. Otherwise, a share of requests is sampled at random.
	if !ok {
		parent = spans.Begin(rand.Float64() < s.tracing.SampleRatio)
	}
	// Begin returns only a trace. Its first span is a child too, one without a parent.
	c := parent.Child()
	// Copy the request and its header, because the caller still owns them.
	copied := *req
	copied.Header = req.Header.Clone()
	c.Write(copied.Header)
	// The record is that of the access log.
	layer.RecordFromContext(ctx).SetTrace(hex.EncodeToString(c.Trace[:]))
	return s.Service.Call(reqctx.WithValue(ctx, traceKey{}, c), &copied)
}

func (s *traceBeginner) Next() httplayer.Service { return s.Service }

func (*traceBeginner) Describe() layer.Node { return layer.Node{Name: "trace_context"} }

// request returns a layer that records the span of each client request.
func (t *tracing) request() httplayer.Layer {
	if t == nil {
		return nil
	}
	return layer.Trace(func(ctx context.Context, req *http.Request) (context.Context, layer.Span[*http.Response]) {
		c := traceOf(ctx)
		// Without a sampled trace, no span is recorded.
		if c == nil || !c.Sampled() {
			return ctx, nil
		}
		// begin has made the IDs, which services have received already.
		s := t.newSpan(spans.Server, c, req)
		ctx, s.record = layer.WithRecord(ctx)
		return ctx, s
	}, layer.WithCompletion(httplayer.Completion), layer.WithClassifier(httplayer.Classify))
}

// attempt returns a layer that records a span for each attempt at an endpoint. The endpoint
// receives the span's IDs.
func (t *tracing) attempt(service config.Name, endpoint string) httplayer.Layer {
	if t == nil {
		return nil
	}
	record := layer.Trace(func(ctx context.Context, req *http.Request) (context.Context, layer.Span[*http.Response]) {
		c := traceOf(ctx)
		if c == nil || !c.Sampled() {
			return ctx, nil
		}
		// Each attempt is a child of the request's span.
		s := t.newSpan(spans.Client, c.Child(), req)
		s.Set("gotower.target", string(service))
		s.Set("network.peer.address", endpoint)
		return reqctx.WithValue(ctx, traceKey{}, &s.Context), s
	}, layer.WithCompletion(httplayer.Completion), layer.WithClassifier(httplayer.Classify))
	return func(next httplayer.Service) httplayer.Service { return record(&traceSender{next}) }
}

// traceSender replaces a sampled attempt's trace headers by its own span's. An attempt that is
// not sampled keeps the headers that [tracing.begin] has set.
type traceSender struct{ httplayer.Service }

// Call adds the trace headers for this attempt to a copy of the request, if the trace is recorded.
func (s *traceSender) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	// The endpoint's own spans become children of this attempt's.
	if c := traceOf(ctx); c != nil && c.Sampled() {
		copied := *req
		copied.Header = req.Header.Clone()
		c.Write(copied.Header)
		req = &copied
	}
	return s.Service.Call(ctx, req)
}

func (s *traceSender) Next() httplayer.Service { return s.Service }

func (*traceSender) Describe() layer.Node { return layer.Node{Name: "traceparent"} }

// span records a request or an attempt. It implements [layer.Span].
type span struct {
	spans.Span

	tracing *tracing
	record  *layer.Record // facts about the request; nil for an attempt
	head    bool          // the response headers have arrived
}

// newSpan begins a span of the given kind with the IDs in c and what is known from the request.
func (t *tracing) newSpan(kind spans.Kind, c *spans.Context, req *http.Request) *span {
	var a httplayer.HTTP
	s := &span{tracing: t, Span: spans.Span{Context: *c, Kind: kind, Name: a.Method(req), Start: time.Now()}}
	s.Set("http.request.method", a.Method(req))
	s.Set("url.scheme", a.Scheme(req))
	s.Set("server.address", a.Authority(req))
	s.Set("url.path", a.Path(req))
	return s
}

// Head records the response status.
func (s *span) Head(rsp *http.Response) {
	s.head = true
	s.SetInt("http.response.status_code", rsp.StatusCode)
}

// End completes the span and passes it to the exporter.
func (s *span) End(c layer.Class, err error) {
	s.Span.End = time.Now()
	// Attempts have no record, because the facts are about the whole request.
	if s.record != nil {
		f := s.record.Facts()
		if f.Route != "" {
			s.Name += " " + f.Route
			s.Set("http.route", f.Route)
		}
		if f.Client.IsValid() {
			s.Set("client.address", f.Client.String())
		}
		s.SetInt("gotower.attempts", f.Attempts)
		// Without response headers, the client receives the status of the error.
		if !s.head && err != nil {
			status, _ := httplayer.StatusFromError(err)
			s.SetInt("http.response.status_code", status)
		}
	}
	if c.IsFailure() || errors.Is(err, layer.ErrNotReady) { // to the client, a rejection by the layers below is a failure
		s.Failure = c.String()
		if err != nil {
			s.Failure = err.Error()
		}
	}
	s.tracing.exporter.Add(&s.Span)
}
