// Package traces records spans and exports them with OTLP, with the attributes and rules of
// linkerd's proxy. The proxy never begins a trace. It records a span only if the application or
// client sent a sampled trace context, in the headers of W3C Trace Context, B3 or OpenCensus. Other
// requests pass unchanged.
package traces

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/internal/spans"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// Scope is the instrumentation scope of the proxy's spans.
const Scope = "github.com/gotower/gotower/examples/proxy"

// Server returns the layer for requests that arrive on one side of the proxy. Its spans have the
// attribute direction. If exporter is nil, Server returns nil.
func Server(exporter *spans.Exporter, direction meters.Direction) httplayer.Layer {
	return newLayer(exporter, direction, spans.Server)
}

// Client returns the layer for requests that the proxy sends: outbound to an endpoint, and inbound
// to the application. If exporter is nil, Client returns nil.
func Client(exporter *spans.Exporter, direction meters.Direction) httplayer.Layer {
	return newLayer(exporter, direction, spans.Client)
}

// newLayer returns a layer that records a span of the given kind for requests with a sampled trace. A nil exporter
// means that no spans are recorded, and the layer is nil.
func newLayer(exporter *spans.Exporter, direction meters.Direction, kind spans.Kind) httplayer.Layer {
	if exporter == nil {
		return nil
	}
	// tracer has stored the span in the context. layer.Trace only completes it when the response ends.
	record := layer.Trace(func(ctx context.Context, _ *http.Request) (context.Context, layer.Span[*http.Response]) {
		s, _ := ctx.Value(spanKey{}).(*span)
		return ctx, s
	}, layer.WithCompletion(httplayer.Completion), layer.WithClassifier(httplayer.Classify))
	return func(next httplayer.Service) httplayer.Service {
		return &tracer{Service: next, exporter: exporter, direction: string(direction), kind: kind, recorded: record(next)}
	}
}

// spanKey is the context key for a request's *span.
type spanKey struct{}

// tracer adds a new span to the context and headers of requests with a sampled trace, and passes
// them to recorded. Other requests go straight to the embedded Service.
type tracer struct {
	httplayer.Service

	exporter  *spans.Exporter
	direction string
	kind      spans.Kind
	recorded  httplayer.Service // the embedded Service, wrapped by the layer that ends spans
}

// Call records a span for the request if its headers belong to a sampled trace.
func (t *tracer) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	parent, ok := spans.ParseAny(req.Header)
	// Without a sampled trace, the request is not recorded, and its headers stay as they are.
	if !ok || !parent.Sampled() {
		return t.Service.Call(ctx, req)
	}
	s := t.newSpan(&parent, req)
	// Copy the request, because the caller still owns its headers.
	traced := *req
	traced.Header = req.Header.Clone()
	// The next proxy's span becomes a child of this one.
	s.Write(traced.Header)
	return t.recorded.Call(reqctx.WithValue(ctx, spanKey{}, s), &traced)
}

func (t *tracer) Next() httplayer.Service { return t.Service }

func (*tracer) Describe() layer.Node { return layer.Node{Name: "trace"} }

// span records one request. It implements [layer.Span].
type span struct {
	spans.Span

	exporter *spans.Exporter
	head     bool // response headers have arrived
}

// newSpan returns a span with the attributes that linkerd's proxy sets. Like linkerd, it records
// the port and the status as text.
func (t *tracer) newSpan(parent *spans.Context, req *http.Request) *span {
	var a httplayer.HTTP
	path, query, scheme, authority := a.Path(req), a.Query(req), a.Scheme(req), a.Authority(req)
	s := &span{exporter: t.exporter, Span: spans.Span{
		// 14 is the largest number of attributes below, with the status.
		Context: *parent.Child(), Kind: t.kind, Name: path, Start: time.Now(), Attributes: make([]spans.Attribute, 0, 14),
	}}
	s.Set("direction", t.direction)
	s.Set("http.request.method", a.Method(req))
	s.Set("network.transport", "tcp")
	s.Set("url.scheme", scheme)
	s.Set("url.path", path)
	if query != "" {
		s.Set("url.query", query)
		path += "?" + query
	}
	// A user name and password in the authority must not reach the collector.
	if userEnd := strings.LastIndexByte(authority, '@'); userEnd >= 0 {
		authority = "REDACTED@" + authority[userEnd+1:]
	}
	s.Set("url.full", scheme+"://"+authority+path)
	// A gateway in front may have replaced the host, and tells the original one here.
	host := req.Header.Get("X-Forwarded-Host")
	if host == "" {
		host = a.Authority(req)
	}
	// An error means that host has no port.
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	s.Set("server.address", name)
	if number, err := strconv.ParseUint(port, 10, 16); err == nil {
		s.Set("server.port", strconv.FormatUint(number, 10))
	}
	for _, field := range [...]struct{ header, attribute string }{
		{"User-Agent", "user_agent.original"},
		{"Content-Length", "http.request.header.content-length"},
		{"Content-Type", "http.request.header.content-type"},
		{"L5d-Orig-Proto", "http.request.header.l5d-orig-proto"},
	} {
		if values := req.Header[field.header]; len(values) > 0 {
			s.Set(field.attribute, values[0])
		}
	}
	return s
}

// Head records the response's status.
func (s *span) Head(rsp *http.Response) {
	s.head = true
	s.setStatus(rsp.StatusCode)
}

func (s *span) setStatus(code int) { s.Set("http.response.status_code", strconv.Itoa(code)) }

// End completes the span and passes it to the exporter. A failed request gets the status with which
// the proxy answers it.
func (s *span) End(c layer.Class, err error) {
	s.Span.End = time.Now()
	// Without response headers, the client receives the status of the error.
	if !s.head && err != nil {
		status, _ := httplayer.StatusFromError(err)
		s.setStatus(status)
	}
	// A rejection is not the endpoint's failure, but the request failed all the same.
	if c.IsFailure() || errors.Is(err, layer.ErrNotReady) {
		s.Failure = c.String()
		if err != nil {
			s.Failure = err.Error()
		}
	}
	s.exporter.Add(&s.Span)
}
