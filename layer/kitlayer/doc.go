// Package kitlayer carries layers to go-kit and back: nothing is added on the
// way.
//
//	endpoint.Endpoint    ── Service ──▶    layer.Service[Req, Rsp]
//	endpoint.Endpoint    ◀── Endpoint ──   layer.Service[Req, Rsp]
//	endpoint.Middleware  ── Layer ──▶      layer.Layer[Req, Rsp]
//	endpoint.Middleware  ◀── Middleware ── layer.Layer[Req, Rsp]
//	sd.Factory           ── Factory ──▶    layer.Service[Req, Rsp], one for each instance
//	metrics providers    ── Instruments ─▶ layer.Instruments
//
// Write stacks for endpoints with [NewStack]: its layers know what go-kit's
// responses and errors mean, so that a breaker and a retry work without settings.
//
// go-kit's messages are of type any, those of this library have types. Where a
// value turns out to have another type than was said, the call fails with a
// [TypeError]. A nil endpoint, service or factory panics in the constructor.
//
// A panic of an endpoint or of a middleware reaches the caller of Call, as in
// go-kit; the layers on the way release what they hold. A panic of the Close of a
// [Factory] is discarded, because it has no caller.
//
// A balancer over such services has the classifier of go-kit ([Classify]).
//
// An endpoint's response is over when the endpoint returned, so the layers'
// defaults hold as they are.
package kitlayer
