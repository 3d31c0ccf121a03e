package inbound

import (
	"context"
	"net"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// callerKey finds, in the context of a request, the *client that its connection
// is from.
type callerKey struct{}

// knowing looks once for each connection who it is from: certificates are parsed
// anew whenever they are looked at.
type knowing struct{ tcplayer.Server }

func (k knowing) Call(ctx context.Context, conn net.Conn) (tcplayer.Traffic, error) {
	return k.Server.Call(context.WithValue(ctx, callerKey{}, new(clientOf(conn))), conn)
}

func (k knowing) Next() tcplayer.Server { return k.Server }

func (k knowing) Describe() layer.Node { return layer.Node{Name: "client"} }

// callerOf is who a request is from.
func callerOf(ctx context.Context) client {
	if c, ok := ctx.Value(callerKey{}).(*client); ok {
		return *c
	}
	return clientOf(httplayer.ConnOf(ctx))
}
