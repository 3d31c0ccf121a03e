// Package kitlayer converts between layers and go-kit:
//
//	endpoint.Endpoint    ── Service ──▶    layer.Service[Req, Rsp]
//	endpoint.Endpoint    ◀── Endpoint ──   layer.Service[Req, Rsp]
//	endpoint.Middleware  ── Layer ──▶      layer.Layer[Req, Rsp]
//	endpoint.Middleware  ◀── Middleware ── layer.Layer[Req, Rsp]
//	sd.Factory           ── Factory ──▶    layer.Service[Req, Rsp], one for each instance
//
// The fields of layer.Instruments have the metric types of go-kit, so they need no
// conversion.
//
// Make stacks for endpoints by [NewStack]. Its layers use [Classify] for the responses and
// errors of go-kit, so that a breaker and a retry need no settings. A balancer over
// services of [Service] uses the same classifier.
//
// The messages of go-kit have the type any. A message of an unexpected type fails the call
// with a [TypeError]. A nil endpoint, service or factory panics in the constructor.
//
// A panic of an endpoint or of a middleware reaches the caller of Call, and the layers
// release their slots. A panic of the Close of a [Factory] is dropped, because it has no
// caller.
//
// A response of an endpoint ends when the endpoint returns, which is the default of the
// layers.
package kitlayer
