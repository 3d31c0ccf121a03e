// Package kitlayer carries layers to go-kit and back: nothing is added on the
// way.
//
//	endpoint.Endpoint    ── Service ──▶    layer.Service[Req, Rsp]
//	endpoint.Endpoint    ◀── Endpoint ──   layer.Service[Req, Rsp]
//	endpoint.Middleware  ── Layer ──▶      layer.Layer[Req, Rsp]
//	endpoint.Middleware  ◀── Middleware ── layer.Layer[Req, Rsp]
//	endpoint.Failer      ── Classify ──▶   layer.Class
//	metrics providers    ── Instruments ─▶ layer.Instruments
//
// go-kit's messages are of type any, those of this library have types. Where a
// value turns out to have another type than was said, the call fails with a
// [TypeError]; nothing panics.
//
// A balancer over such services has the classifier of go-kit ([Classify]).
//
// An endpoint's response is over when the endpoint returned, so the layers'
// defaults hold as they are.
package kitlayer
