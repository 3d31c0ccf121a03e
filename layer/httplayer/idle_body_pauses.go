package httplayer

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// SlowBodyQuota let request bodies fall behind the pace of a [Server], see
// [WithMinBodyRate], of which the length is not known beforehand: those of HTTP/1.1 in
// chunks. Whoever sends a log, a build or a voice as it comes has nothing to send
// at times, and nobody can tell him from one who holds a connection for nothing,
// but by how many he holds. So each client address may have some of them, and all
// together some more; a body beyond that is cut, by the rule of WithMinBodyRate. A body
// of a known length is all there to be sent, and has no such excuse; gRPC and
// HTTP/2 without a content-length need none.
//
// A body takes a place when it falls behind, and gives it back when it has ended
// or its handler returns; till then it may be as slow as it likes. Addresses of
// IPv6 count by their /64, which one client has for himself.
//
// SlowBodyQuota are safe for concurrent use, may be shared by several servers, and
// start nothing.
type SlowBodyQuota struct {
	perClient, all int

	mu      sync.Mutex
	held    int
	clients map[netip.Prefix]int // who holds some, and how many
}

// NewSlowBodyQuota returns places for so many bodies of each client, and of all of
// them. With 0 or less of either, there is none.
func NewSlowBodyQuota(perClient, all int) *SlowBodyQuota {
	return &SlowBodyQuota{perClient: perClient, all: all, clients: map[netip.Prefix]int{}}
}

// Allow is the layer of the connections whose requests may take places. Next is a
// [Server], or leads to one.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: the context is passed on, with a value.
//
// Body: none of its own.
//
// Errors: passed as they are.
//
// Cost: one allocation for a connection, and a look at the context for each body
// without a length.
func (p *SlowBodyQuota) Allow(next tcplayer.Server) tcplayer.Server { return &pausing{next, p} }

type pausing struct {
	tcplayer.Server
	pauses *SlowBodyQuota
}

type pausesKey struct{}

func (p *pausing) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	return p.Server.Call(context.WithValue(ctx, pausesKey{}, p.pauses), conn)
}

func (p *pausing) Next() tcplayer.Server { return p.Server }

// Describe shows how many places there are, and how many are taken.
func (p *pausing) Describe() layer.Node {
	p.pauses.mu.Lock()
	defer p.pauses.mu.Unlock()
	return layer.Node{Name: "body pauses", State: layer.State{
		{Key: "paused", Value: p.pauses.held}, {Key: "clients", Value: len(p.pauses.clients)},
		{Key: "per_client", Value: p.pauses.perClient}, {Key: "max", Value: p.pauses.all},
	}}
}

// pausesOf returns where the body of r takes its place, if it may.
func pausesOf(r *http.Request) (*SlowBodyQuota, netip.Prefix) {
	p, ok := r.Context().Value(pausesKey{}).(*SlowBodyQuota)
	if !ok {
		return nil, netip.Prefix{}
	}
	return p, clientOf(r.RemoteAddr)
}

// clientOf is whom an address is taken for. Those that are none of TCP are one.
func clientOf(remote string) netip.Prefix {
	const site = 64
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	addr := at.Addr().Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = site
	}
	return netip.PrefixFrom(addr, bits).Masked()
}

// enter takes a place, if there is one. Of nil there is none.
func (p *SlowBodyQuota) enter(client netip.Prefix) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held >= p.all || p.clients[client] >= p.perClient {
		return false
	}
	p.held++
	p.clients[client]++
	return true
}

func (p *SlowBodyQuota) leave(client netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held--
	if p.clients[client]--; p.clients[client] == 0 {
		delete(p.clients, client)
	}
}
