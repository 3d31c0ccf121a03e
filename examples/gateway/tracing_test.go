package main

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/internal/spans/spanstest"
)

// receiver is a server for OTLP over HTTP.
type receiver struct {
	*spanstest.Receiver

	url string
}

func startReceiver(t *testing.T) *receiver {
	t.Helper()
	r, err := spanstest.NewReceiver()
	require.NoError(t, err)
	return &receiver{r, "http://" + serverAt(t, r.ServeHTTP) + "/v1/traces"}
}

// wait returns the spans of a trace when there are n of them.
func (r *receiver) wait(t *testing.T, trace string, n int) (spans []spanstest.Span) {
	t.Helper()
	until(t, func() bool {
		spans = r.Spans(trace)
		return len(spans) == n
	})
	return spans
}

// A request continues the trace of its client. The receiver gets a span of the request and a
// span of each attempt, and each server gets the span of its attempt.
func TestTracing(t *testing.T) {
	t.Parallel()
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	var mu sync.Mutex
	var seen []http.Header
	books := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if seen = append(seen, r.Header); len(seen) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	to := startReceiver(t)
	p := start(t, strings.Replace(head, `format: "off"`, "format: json", 1)+"tracing: {endpoint: \""+to.url+"\", sampleRatio: 0, serviceName: edge}\n"+
		"services:\n"+service("books", books)+"routes: [{name: all, backendRefs: [{name: books}], retry: {attempts: 1}}]\n")
	require.Equal(t, http.StatusOK, p.get(t, "GET", "/books", "traceparent: 00-"+trace+"-"+parent+"-01", "tracestate: a=1", "tracestate: b=2").StatusCode)
	spans := to.wait(t, trace, 3)
	byID, request := map[string]spanstest.Span{}, spanstest.Span{}
	for _, s := range spans {
		byID[s.ID] = s
		assert.Equal(t, "a=1,b=2", s.State)
		assert.Less(t, s.Start, s.End)
		if s.Kind == "SPAN_KIND_SERVER" {
			request = s
		}
	}
	assert.Equal(t, "GET all", request.Name)
	assert.Equal(t, parent, request.Parent)
	for key, want := range map[string]any{
		"http.request.method": "GET", "url.path": "/books", "http.route": "all", "gotower.attempts": int64(2), "http.response.status_code": int64(200),
	} {
		assert.Equal(t, want, request.Attributes[key], key)
	}
	for i, status := range []int64{http.StatusServiceUnavailable, http.StatusOK} {
		header := seen[i].Get("Traceparent")
		assert.Equal(t, "a=1,b=2", seen[i].Get("Tracestate"))
		attempt, ok := byID[strings.TrimSuffix(strings.TrimPrefix(header, "00-"+trace+"-"), "-01")]
		require.True(t, ok, header)
		assert.Equal(t, request.ID, attempt.Parent)
		assert.Equal(t, "SPAN_KIND_CLIENT", attempt.Kind)
		assert.Equal(t, books, attempt.Attributes["network.peer.address"])
		assert.Equal(t, status, attempt.Attributes["http.response.status_code"])
		assert.Equal(t, i == 0, attempt.Failure != "")
	}
	assert.Equal(t, "edge", request.Resource["service.name"])
	until(t, func() bool { return strings.Contains(p.log.String(), `"trace_id":"`) })
	assert.Contains(t, p.log.String(), trace)

	// No trace that begins here is sampled, and its ID is still sent and logged.
	p.get(t, "GET", "/", "traceparent: 00-"+trace+"-"+parent, "tracestate: a=1")
	mu.Lock()
	own := seen[2]
	mu.Unlock()
	assert.Regexp(t, "^00-[0-9a-f]{32}-[0-9a-f]{16}-00$", own.Get("Traceparent"))
	assert.NotContains(t, own.Get("Traceparent"), trace)
	assert.Empty(t, own.Get("Tracestate"))
	until(t, func() bool { return strings.Contains(p.log.String(), strings.Split(own.Get("Traceparent"), "-")[1]) })
	to.wait(t, trace, 3)
}

// Every trace that begins at the gateway is sampled with the ratio 1. The spans that wait are
// sent at shutdown, and a receiver that fails does not affect requests.
func TestTracingShutdown(t *testing.T) {
	t.Parallel()
	const routes = "services:\n- {name: a, directResponse: {status: 200}}\nroutes: [{name: all, backendRefs: [{name: a}]}]\n"
	to := startReceiver(t)
	p := start(t, head+"tracing: {endpoint: \""+to.url+"\", sampleRatio: 1}\n"+routes)
	for range 5 {
		p.get(t, "GET", "/")
	}
	p.stop()
	require.NoError(t, p.ended())
	assert.Len(t, to.Spans(""), 5)
	p = start(t, head+"tracing: {endpoint: \""+to.url+"\", sampleRatio: 1}\nroutes: []\n")
	p.get(t, "GET", "/")
	p.stop()
	require.NoError(t, p.ended())
	last := to.Spans("")
	require.Len(t, last, 6)
	assert.EqualValues(t, 404, last[5].Attributes["http.response.status_code"])
	p = start(t, head+"tracing: {endpoint: \""+to.url+"x\", sampleRatio: 1}\n"+routes)
	assert.Equal(t, http.StatusOK, p.get(t, "GET", "/").StatusCode)
	p.stop()
	require.NoError(t, p.ended())
	assert.Contains(t, p.log.String(), "spans were not sent")
}
