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

// withClient looks who conn is from, if nobody above has: once for each
// connection, as certificates are parsed anew whenever they are looked at.
func withClient(ctx context.Context, conn net.Conn) (context.Context, *client) {
	if c, ok := ctx.Value(callerKey{}).(*client); ok {
		return ctx, c
	}
	c := clientOf(conn)
	return context.WithValue(ctx, callerKey{}, &c), &c
}

// byClient has those who proved an identity served by meshed.
type byClient struct {
	tcplayer.Server // of strangers
	meshed          tcplayer.Server
}

func (b *byClient) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	ctx, c := withClient(ctx, conn)
	if c.id != "" {
		return b.meshed.Call(ctx, conn)
	}
	return b.Server.Call(ctx, conn)
}

// Describe shows both servers.
func (b *byClient) Describe() layer.Node {
	return layer.Node{Name: "client", Children: []layer.Node{
		{Name: "meshed", Children: []layer.Node{layer.Describe(b.meshed)}},
		{Name: "stranger", Children: []layer.Node{layer.Describe(b.Server)}},
	}}
}

// callerOf is who a request is from.
func callerOf(ctx context.Context) client {
	if c, ok := ctx.Value(callerKey{}).(*client); ok {
		return *c
	}
	return clientOf(httplayer.ConnFromContext(ctx))
}
