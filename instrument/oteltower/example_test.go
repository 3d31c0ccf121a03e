package oteltower_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/gotower/gotower/httpclient"
)

// Package otelhttp around a client makes a span for each request. ClientTrace, as the argument of
// httpclient.WithEndpointLayer, makes one for each attempt.
func Example_otelhttp() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("traced:", r.Header.Get("Traceparent") != "")
	}))
	defer s.Close()
	spans := tracetest.NewSpanRecorder()
	c := &http.Client{Transport: otelhttp.NewTransport(httpclient.NewTransport(ctx),
		otelhttp.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))),
		otelhttp.WithPropagators(propagation.TraceContext{}))}
	rsp, err := c.Get(s.URL)
	if err != nil {
		panic(err)
	}
	rsp.Body.Close()
	fmt.Println(rsp.StatusCode, spans.Ended()[0].Name())
	// Output:
	// traced: true
	// 200 HTTP GET
}
