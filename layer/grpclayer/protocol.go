package grpclayer

import (
	"context"

	"github.com/gotower/gotower/layer"
)

// GRPC is the [layer.Protocol] of gRPC, and its [layer.Accessor], which lets the packages for routes
// and taps read calls as if they were HTTP requests. It presents a call as an HTTP/2 POST request
// with the method's name as its path, and a reply as a response with status 200.
//
// A call can be sent any number of times without storing a body if its only request is a message in
// memory, as in a unary call or a stream with one request. Any other stream is opened again only
// before its first message.
type GRPC struct {
	// IsIdempotent reports whether sending c twice has the same effect as sending it once. If
	// IsIdempotent is nil, no method is idempotent. [Client.Stream] documents which streams can
	// be repeated.
	IsIdempotent func(c *Call) bool
}

var (
	_ layer.Protocol[*Call, *Reply] = GRPC{}
	_ layer.Accessor[*Call, *Reply] = GRPC{}
)

// Complete returns the result of [Completion].
func (GRPC) Complete(ctx context.Context, r *Reply, o layer.Observer) *Reply {
	return Completion(ctx, r, o)
}

// Classify returns the result of the function [Classify].
func (GRPC) Classify(o layer.Outcome[*Reply]) layer.Class { return Classify(o) }

// Outline returns "", because a call that fails returns an error.
func (GRPC) Outline(*Reply) string { return "" }
