// Package kitlayer converts between layers and go-kit:
//
//	endpoint.Endpoint    ── Service ──▶    layer.Service[Req, Rsp]
//	endpoint.Endpoint    ◀── Endpoint ──   layer.Service[Req, Rsp]
//	endpoint.Middleware  ── Layer ──▶      layer.Layer[Req, Rsp]
//	endpoint.Middleware  ◀── Middleware ── layer.Layer[Req, Rsp]
//	sd.Factory           ── Factory ──▶    layer.Service[Req, Rsp], one for each instance
//	lb.Balancer          ◀── Balancer ──   layer.Service[Req, Rsp]
//
// The fields of layer.Instruments use go-kit's metric types, so you need not convert them.
//
// You should make stacks for endpoints with [NewStack]: its layers use [Classify] for go-kit's
// responses and errors, so that a breaker and a retry need no settings. A balancer over services
// from [Service] uses the same classifier.
//
// go-kit's messages are of type any. A message of an unexpected type fails the call with a
// [TypeError]. A nil endpoint, service or factory panics in the constructor.
//
// A panic in an endpoint or a middleware reaches the caller of Call, and the layers release their
// slots. A panic in a [Factory]'s Close is dropped, because nothing called it.
//
// An endpoint's response ends when the endpoint returns, which is the layers' default.
package kitlayer
