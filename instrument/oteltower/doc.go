// Package oteltower measures and traces layers by OpenTelemetry:
//
//	m := oteltower.NewMetrics(otel.GetMeterProvider())
//	web := httpclient.New(ctx, "web-headless.default:8080", httpclient.WithMetrics(m),
//		httpclient.WithEndpointLayer(oteltower.ClientTrace(otel.GetTracerProvider())))
//	handler := httplayer.Middleware(oteltower.ServerTrace(otel.GetTracerProvider()))(mux)
//
// Contexts are passed from hop to hop by the W3C headers traceparent and tracestate.
//
// The package is a module of its own, so that programs without OpenTelemetry do not
// require it.
package oteltower

// scope is the name of this package in the meters and tracers that it uses.
const scope = "github.com/gotower/gotower/instrument/oteltower"
