package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// tracing continues or begins the trace of each request, and sends the sampled spans to a
// receiver of OTLP. A nil *tracing does nothing. The type does not use the SDK of
// OpenTelemetry, because the SDK would then be in the go.mod of this module. That can raise
// the version of the SDK in programs that import the module.
type tracing struct {
	config.Tracing

	log    *slog.Logger
	client *http.Client
	spans  chan *span // ended spans that are not yet sent
	counts *prometheus.CounterVec
}

// The limits of the exporter: the number of spans that wait, the number of spans in one
// request to the receiver, the time between two requests, and the timeout of a request.
const (
	maxWaitingSpans = 4096
	maxBatch        = 512
	batchInterval   = time.Second
	exportTimeout   = 5 * time.Second
)

func newTracing(c *config.Tracing, registry prometheus.Registerer, log *slog.Logger) *tracing {
	if c == nil {
		return nil
	}
	t := &tracing{Tracing: *c, log: log, client: &http.Client{Timeout: exportTimeout}, spans: make(chan *span, maxWaitingSpans)}
	t.counts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gateway_spans_total", Help: "Ended spans by outcome: sent to the receiver, failed, or dropped because too many wait.",
	}, []string{"outcome"})
	for _, outcome := range []string{"sent", "failed", "dropped"} {
		t.counts.WithLabelValues(outcome)
	}
	registry.MustRegister(t.counts)
	return t
}

// traceContext identifies a span in a trace. The field parent is zero if the trace begins
// with this span. The field state is the value of the header tracestate.
type traceContext struct {
	trace        [16]byte
	span, parent [8]byte
	sampled      bool
	state        string
}

// traceKey is the context key of the *traceContext of a request or of an attempt.
type traceKey struct{}

func traceOf(ctx context.Context) *traceContext {
	c, _ := ctx.Value(traceKey{}).(*traceContext)
	return c
}

// The headers of W3C Trace Context.
const (
	traceparent = "Traceparent"
	tracestate  = "Tracestate"
)

// parseTrace returns the span that the headers traceparent and tracestate of h specify. The
// result ok is false if traceparent is missing or invalid. It ignores the fields of traceparent
// after the fourth. In the version 00, such fields are invalid.
func parseTrace(h http.Header) (c traceContext, ok bool) {
	values := h[traceparent]
	if len(values) != 1 {
		return c, false
	}
	parts := strings.SplitN(values[0], "-", 5)
	if len(parts) < 4 || strings.ToLower(values[0]) != values[0] || parts[0] == "ff" || parts[0] == "00" && len(parts) != 4 {
		return c, false
	}
	var version, flags [1]byte
	for i, to := range [][]byte{version[:], c.trace[:], c.span[:], flags[:]} {
		if len(parts[i]) != 2*len(to) {
			return c, false
		}
		if _, err := hex.Decode(to, []byte(parts[i])); err != nil {
			return c, false
		}
	}
	c.sampled, c.state = flags[0]&1 != 0, strings.Join(h[tracestate], ",")
	return c, c.trace != [16]byte{} && c.span != [8]byte{}
}

// write sets the headers traceparent and tracestate of h to the values for the span c.
func (c *traceContext) write(h http.Header) {
	flags := "-00"
	if c.sampled {
		flags = "-01"
	}
	h[traceparent] = []string{"00-" + hex.EncodeToString(c.trace[:]) + "-" + hex.EncodeToString(c.span[:]) + flags}
	if c.state == "" {
		delete(h, tracestate)
	} else {
		h[tracestate] = []string{c.state}
	}
}

// child returns a new span with the parent c.
func (c *traceContext) child() *traceContext {
	n := *c
	n.parent = c.span
	randomize(n.span[:])
	return &n
}

// randomize fills id with random bytes that are not all zero.
func randomize(id []byte) {
	for i := range id {
		id[i] = byte(rand.IntN(256))
	}
	id[0] |= 1
}

// begin returns a handler that adds tracing to h, the handler of a listener. It begins a
// span for each request, and sets the header traceparent of the request to this span. The
// access log then has the same trace ID as the spans.
func (t *tracing) begin(h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parent, ok := parseTrace(r.Header)
		if !ok {
			parent = traceContext{sampled: rand.Float64() < t.SampleRatio}
			randomize(parent.trace[:])
		}
		c := parent.child()
		c.write(r.Header)
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), traceKey{}, c)))
	})
}

// The kinds of spans in OTLP.
const (
	serverSpan = 2
	clientSpan = 3
)

// request returns the layer that records the span of each request of a client.
func (t *tracing) request() httplayer.Layer {
	if t == nil {
		return nil
	}
	return layer.Trace(func(ctx context.Context, req *http.Request) (context.Context, layer.Span[*http.Response]) {
		c := traceOf(ctx)
		if c == nil || !c.sampled {
			return ctx, nil
		}
		s := t.newSpan(serverSpan, c, req)
		ctx, s.record = layer.WithRecord(ctx)
		return ctx, s
	}, layer.WithCompletion(httplayer.Completion), layer.WithClassifier(httplayer.Classify))
}

// attempt returns the layer that records a span for each attempt at the given endpoint of
// service. The layer sends the IDs of the trace and of this span to the endpoint.
func (t *tracing) attempt(service config.Name, endpoint string) httplayer.Layer {
	if t == nil {
		return nil
	}
	record := layer.Trace(func(ctx context.Context, req *http.Request) (context.Context, layer.Span[*http.Response]) {
		c := traceOf(ctx)
		if c == nil || !c.sampled {
			return ctx, nil
		}
		s := t.newSpan(clientSpan, c.child(), req)
		s.set("gotower.target", string(service))
		s.set("network.peer.address", endpoint)
		return context.WithValue(ctx, traceKey{}, s.at), s
	}, layer.WithCompletion(httplayer.Completion), layer.WithClassifier(httplayer.Classify))
	return func(next httplayer.Service) httplayer.Service { return record(&traceSender{next}) }
}

// traceSender is a service that sets the trace headers of each sampled attempt, so that
// they identify the span of the attempt. An attempt that is not sampled keeps the headers
// that [tracing.begin] has set.
type traceSender struct{ httplayer.Service }

func (s *traceSender) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if c := traceOf(ctx); c != nil && c.sampled {
		copied := *req
		copied.Header = req.Header.Clone()
		c.write(copied.Header)
		req = &copied
	}
	return s.Service.Call(ctx, req)
}

func (s *traceSender) Next() httplayer.Service { return s.Service }

func (*traceSender) Describe() layer.Node { return layer.Node{Name: "traceparent"} }

// span has the name, the times and the attributes of one request or attempt, for the
// receiver of OTLP. It implements [layer.Span].
type span struct {
	tracing    *tracing
	at         *traceContext
	kind       int
	name       string
	start, end time.Time
	attributes []attribute
	record     *layer.Record // facts about the request; nil for an attempt
	head       bool          // the response headers have arrived
	failure    string        // text of the error; "" if the request did not fail
}

func (t *tracing) newSpan(kind int, at *traceContext, req *http.Request) *span {
	var a httplayer.Accessor
	s := &span{tracing: t, at: at, kind: kind, name: a.Method(req), start: time.Now()}
	s.set("http.request.method", a.Method(req))
	s.set("url.scheme", a.Scheme(req))
	s.set("server.address", a.Authority(req))
	s.set("url.path", a.Path(req))
	return s
}

func (s *span) set(key, value string) {
	s.attributes = append(s.attributes, attribute{key, object{"stringValue": value}})
}

// setInt sets the attribute key to n. The JSON form of OTLP has integers as strings.
func (s *span) setInt(key string, n int) {
	s.attributes = append(s.attributes, attribute{key, object{"intValue": strconv.Itoa(n)}})
}

// Head sets the attribute for the status of the response rsp.
func (s *span) Head(rsp *http.Response) {
	s.head = true
	s.setInt("http.response.status_code", rsp.StatusCode)
}

// End completes the span and passes it to the exporter. It drops the span if the maximum
// number of spans already waits.
func (s *span) End(c layer.Class, err error) {
	s.end = time.Now()
	if s.record != nil {
		f := s.record.Facts()
		if f.Route != "" {
			s.name += " " + f.Route
			s.set("http.route", f.Route)
		}
		if f.Client.IsValid() {
			s.set("client.address", f.Client.String())
		}
		s.setInt("gotower.attempts", f.Attempts)
		if !s.head && err != nil {
			status, _ := httplayer.StatusFromError(err)
			s.setInt("http.response.status_code", status)
		}
	}
	if c.IsFailure() || errors.Is(err, layer.ErrNotReady) { // a rejection by the layers below is a failure for the client
		s.failure = c.String()
		if err != nil {
			s.failure = err.Error()
		}
	}
	select {
	case s.tracing.spans <- s:
	default:
		s.tracing.counts.WithLabelValues("dropped").Inc()
	}
}

// run sends the spans in batches until ctx ends. It then sends the spans that still wait.
func (t *tracing) run(ctx context.Context) {
	tick := time.NewTicker(batchInterval)
	defer tick.Stop()
	var batch []*span
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case <-tick.C:
		case s := <-t.spans:
			if batch = append(batch, s); len(batch) < maxBatch {
				continue
			}
		}
		for ended && len(batch) < maxWaitingSpans && len(t.spans) > 0 {
			batch = append(batch, <-t.spans)
		}
		if len(batch) > 0 {
			t.export(context.WithoutCancel(ctx), batch)
			batch = batch[:0]
		}
	}
}

// export sends a batch to the receiver. If that fails, export logs the error, and the spans
// of the batch are lost.
func (t *tracing) export(ctx context.Context, batch []*span) {
	outcome := "sent"
	if err := t.post(ctx, batch); err != nil {
		outcome = "failed"
		t.log.Warn("spans were not sent", "spans", len(batch), "err", err)
	}
	t.counts.WithLabelValues(outcome).Add(float64(len(batch)))
}

func (t *tracing) post(ctx context.Context, batch []*span) error {
	text, err := json.Marshal(t.encode(batch))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, string(t.Endpoint), bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	rsp, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
	if text, err = io.ReadAll(io.LimitReader(rsp.Body, 1024)); err == nil && rsp.StatusCode/100 != 2 {
		err = fmt.Errorf("the receiver returned %s: %q", rsp.Status, text)
	}
	return err
}

type (
	object    = map[string]any
	attribute struct {
		Key   string `json:"key"`
		Value object `json:"value"`
	}
)

// encode returns the message ExportTraceServiceRequest of OTLP in its JSON form, in which IDs
// are hexadecimal and 64-bit integers are strings.
func (t *tracing) encode(batch []*span) object {
	spans := make([]object, 0, len(batch))
	for _, s := range batch {
		o := object{
			"traceId": hex.EncodeToString(s.at.trace[:]), "spanId": hex.EncodeToString(s.at.span[:]), "name": s.name, "kind": s.kind,
			"startTimeUnixNano": strconv.FormatInt(s.start.UnixNano(), 10), "endTimeUnixNano": strconv.FormatInt(s.end.UnixNano(), 10),
			"attributes": s.attributes,
		}
		if s.at.parent != [8]byte{} {
			o["parentSpanId"] = hex.EncodeToString(s.at.parent[:])
		}
		if s.at.state != "" {
			o["traceState"] = s.at.state
		}
		if s.failure != "" {
			o["status"] = object{"code": 2, "message": s.failure}
		}
		spans = append(spans, o)
	}
	resource := object{"attributes": []attribute{{"service.name", object{"stringValue": string(t.ServiceName)}}}}
	scope := object{"name": "github.com/gotower/gotower/examples/gateway"}
	return object{"resourceSpans": []object{{"resource": resource, "scopeSpans": []object{{"scope": scope, "spans": spans}}}}}
}
