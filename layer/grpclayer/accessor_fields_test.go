package grpclayer

import (
	"context"
	"maps"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

func TestAccess(t *testing.T) {
	var a GRPC
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: net.TCPAddrFromAddrPort(replace(a1).update.Endpoints[0].Addr)})
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(":authority", "web", "k", "v"))
	c := &Call{Method: method, incoming: true, ctx: ctx}
	assert.Equal(t, "POST", a.Method(c))
	assert.Equal(t, method, a.Path(c))
	assert.Equal(t, "web", a.Authority(c))
	assert.Empty(t, a.Scheme(c))
	assert.Equal(t, a1, a.Source(c).String())
	assert.Empty(t, a.Query(c))
	assert.Equal(t, "v", a.RequestHeader(c).Get("K"))
	assert.Equal(t, []string{"v"}, a.RequestHeader(c).(interface{ Values(name string) []string }).Values("K"))
	assert.Equal(t, map[string]string{":authority": "web", "k": "v"}, maps.Collect(a.RequestHeader(c).All()))

	r := &Reply{Header: metadata.Pairs("h", "1"), Trailer: metadata.Pairs("t", "2")}
	assert.Equal(t, 200, a.Status(r))
	assert.Equal(t, "1", a.ResponseHeader(r).Get("h"))
	assert.Equal(t, "2", a.ResponseTrailer(r).Get("t"))
	assert.Empty(t, a.ResponseTrailer(r).Get("h"))
	assert.Empty(t, a.ResponseHeader(r).Get("t"), "an absent field")
	assert.Empty(t, a.RequestHeader(c).Get("absent"))

	assert.Empty(t, maps.Collect(a.ResponseHeader(nil).All()), "of a layer that answers with nothing")
	assert.Empty(t, maps.Collect(a.ResponseTrailer(nil).All()))

	out := &Call{ctx: metadata.NewOutgoingContext(context.Background(), metadata.Pairs("k", "v"))}
	assert.Equal(t, "v", a.RequestHeader(out).Get("k"))
	assert.Empty(t, a.Authority(out))
	assert.False(t, a.Source(out).IsValid())
	assert.False(t, a.Source(&Call{}).IsValid())
}
