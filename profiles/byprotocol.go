package profiles

import (
	"context"

	"github.com/gotower/gotower/layer"
)

// byProtocol parts gRPC requests from others, whose responses are judged
// differently.
type byProtocol[Req, Rsp any] struct {
	layer.Service[Req, Rsp] // below both; it alone says whether they are ready
	access                  layer.Accessor[Req, Rsp]
	grpc, other             layer.Service[Req, Rsp]
}

func (b *byProtocol[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if isGRPC(b.access.RequestHeader(req).Get("content-type")) {
		return b.grpc.Call(ctx, req)
	}
	return b.other.Call(ctx, req)
}

// Describe shows both.
func (b *byProtocol[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "by_protocol", Children: []layer.Node{
		{Name: "grpc", Next: new(layer.Describe(b.grpc))},
		{Name: "other", Next: new(layer.Describe(b.other))},
	}}
}
