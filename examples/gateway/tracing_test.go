package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// receivedSpan is a span as a receiver of OTLP decodes it.
type receivedSpan struct {
	TraceID      string `json:"traceId"`
	SpanID       string `json:"spanId"`
	ParentSpanID string `json:"parentSpanId"`
	TraceState   string `json:"traceState"`
	Name         string `json:"name"`
	Kind         int    `json:"kind"`
	Start        int64  `json:"startTimeUnixNano,string"`
	End          int64  `json:"endTimeUnixNano,string"`
	Attributes   []struct {
		Key   string `json:"key"`
		Value struct {
			StringValue string `json:"stringValue"`
			IntValue    int    `json:"intValue,string"`
		} `json:"value"`
	} `json:"attributes"`
	Status struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"status"`
}

// attribute returns the value of the attribute key.
func (s receivedSpan) attribute(key string) any {
	for _, a := range s.Attributes {
		switch {
		case a.Key == key && a.Value.StringValue != "":
			return a.Value.StringValue
		case a.Key == key:
			return a.Value.IntValue
		}
	}
	return nil
}

// receiver is a server for OTLP over HTTP. It decodes spans strictly.
type receiver struct {
	url string

	mu       sync.Mutex
	services map[string]bool
	spans    []receivedSpan
}

func startReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{services: map[string]bool{}}
	r.url = "http://" + serverAt(t, func(w http.ResponseWriter, req *http.Request) {
		var message struct {
			ResourceSpans []struct {
				Resource struct {
					Attributes []struct {
						Key   string
						Value struct{ StringValue string }
					}
				}
				ScopeSpans []struct {
					Scope struct{ Name string }
					Spans []receivedSpan
				}
			}
		}
		d := json.NewDecoder(req.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&message); err != nil || req.Header.Get("Content-Type") != "application/json" || req.URL.Path != "/v1/traces" {
			http.Error(w, "not OTLP", http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, resource := range message.ResourceSpans {
			r.services[resource.Resource.Attributes[0].Value.StringValue] = true
			for _, scope := range resource.ScopeSpans {
				r.spans = append(r.spans, scope.Spans...)
			}
		}
	}) + "/v1/traces"
	return r
}

// wait returns the spans of a trace when there are n of them.
func (r *receiver) wait(t *testing.T, trace string, n int) (spans []receivedSpan) {
	t.Helper()
	until(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		spans = nil
		for _, s := range r.spans {
			if s.TraceID == trace {
				spans = append(spans, s)
			}
		}
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
	byID, request := map[string]receivedSpan{}, receivedSpan{}
	for _, s := range spans {
		byID[s.SpanID] = s
		assert.Equal(t, "a=1,b=2", s.TraceState)
		assert.Less(t, s.Start, s.End)
		if s.Kind == serverSpan {
			request = s
		}
	}
	assert.Equal(t, "GET all", request.Name)
	assert.Equal(t, parent, request.ParentSpanID)
	for key, want := range map[string]any{
		"http.request.method": "GET", "url.path": "/books", "http.route": "all", "gotower.attempts": 2, "http.response.status_code": 200,
	} {
		assert.Equal(t, want, request.attribute(key), key)
	}
	for i, status := range []int{http.StatusServiceUnavailable, http.StatusOK} {
		header := seen[i].Get("Traceparent")
		assert.Equal(t, "a=1,b=2", seen[i].Get("Tracestate"))
		attempt, ok := byID[strings.TrimSuffix(strings.TrimPrefix(header, "00-"+trace+"-"), "-01")]
		require.True(t, ok, header)
		assert.Equal(t, request.SpanID, attempt.ParentSpanID)
		assert.Equal(t, clientSpan, attempt.Kind)
		assert.Equal(t, books, attempt.attribute("network.peer.address"))
		assert.Equal(t, status, attempt.attribute("http.response.status_code"))
		assert.Equal(t, i == 0, attempt.Status.Code == 2)
	}
	assert.True(t, to.services["edge"])
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
	assert.Len(t, to.spans, 5)
	p = start(t, head+"tracing: {endpoint: \""+to.url+"\", sampleRatio: 1}\nroutes: []\n")
	p.get(t, "GET", "/")
	p.stop()
	require.NoError(t, p.ended())
	require.Len(t, to.spans, 6)
	assert.Equal(t, 404, to.spans[5].attribute("http.response.status_code"))
	p = start(t, head+"tracing: {endpoint: \""+to.url+"x\", sampleRatio: 1}\n"+routes)
	assert.Equal(t, http.StatusOK, p.get(t, "GET", "/").StatusCode)
	p.stop()
	require.NoError(t, p.ended())
	assert.Contains(t, p.log.String(), "spans were not sent")
}

func TestParseTrace(t *testing.T) {
	const ids = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
	for value, want := range map[string]bool{
		"00-" + ids + "-01": true, "00-" + ids + "-00": true, "01-" + ids + "-01-more": true,
		"": false, "00": false, "00-" + ids: false, "ff-" + ids + "-01": false, "00-" + ids + "-01-more": false,
		"00-" + strings.ToUpper(ids) + "-01": false, "00-" + ids + "-1": false, "00-" + ids + "-0g": false,
		"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01": false, "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01": false,
	} {
		c, ok := parseTrace(http.Header{traceparent: {value}})
		assert.Equal(t, want, ok, value)
		assert.Equal(t, want && !strings.HasSuffix(value, "-00"), ok && c.sampled, value)
	}
	_, ok := parseTrace(http.Header{traceparent: {"00-" + ids + "-01", "00-" + ids + "-01"}})
	assert.False(t, ok)
}
