package ca

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"
)

// The limits of failed requests: the number that one address may send at once, the number
// per second after that, and the number of addresses that are counted.
const (
	failureBurst  = 100
	failureRate   = 10
	mostAddresses = 10_000
)

// failures limits the failed requests of each client address, because each of them can cost
// a request to the Kubernetes API server. Successful requests are not limited. All clients
// behind one NAT share the limit of its address. The zero value is ready to use.
type failures struct {
	mu sync.Mutex
	of map[netip.Addr]*rate.Limiter
}

// exceeded reports whether too many requests of the client have failed. The next request of
// the client must then be rejected.
func (f *failures) exceeded(client netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.of[client]
	return l != nil && l.Tokens() < 1
}

// add counts a failed request of the client. If the client is new and the maximum number of
// addresses is reached, add first deletes the counts of all addresses.
func (f *failures) add(client netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.of[client]
	if l == nil {
		if len(f.of) >= mostAddresses || f.of == nil {
			f.of = make(map[netip.Addr]*rate.Limiter)
		}
		l = rate.NewLimiter(failureRate, failureBurst)
		f.of[client] = l
	}
	l.Allow()
}

// clientOf returns the IP address of the client that sent a request. It returns the zero
// Addr if the address is unknown.
func clientOf(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	tcp, ok := p.Addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}
