package ca

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"
)

// These limit failed requests: how many one address may send at once, how many per second after
// that, and how many addresses are counted.
const (
	failureBurst  = 100
	failureRate   = 10
	mostAddresses = 10_000
)

// failures limits the failed requests of each client address, because each of them can cost
// a request to the Kubernetes API server. Successful requests are not limited. All clients
// behind one NAT share the limit of its address. The zero value is ready to use.
type failures struct {
	mu       sync.Mutex
	limiters map[netip.Addr]*rate.Limiter
}

// exceeded reports whether too many of the client's requests have failed, so that its next one
// must be rejected.
func (f *failures) exceeded(client netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Without a failure, there is no limiter.
	l := f.limiters[client]
	// A limiter without a token means that the burst is used up.
	return l != nil && l.Tokens() < 1
}

// add counts a failed request of the client. If the client is new and the maximum number of
// addresses is reached, add first deletes the counts of all addresses.
func (f *failures) add(client netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.limiters[client]
	if l == nil {
		// Clearing all of them is simple, and only gives attackers a new burst.
		if len(f.limiters) >= mostAddresses || f.limiters == nil {
			f.limiters = make(map[netip.Addr]*rate.Limiter)
		}
		l = rate.NewLimiter(failureRate, failureBurst)
		f.limiters[client] = l
	}
	// Allow takes a token for this failure, if there is one.
	l.Allow()
}

// clientOf returns the IP address of the client that sent a request. It returns the zero
// Addr if the address is unknown.
func clientOf(ctx context.Context) netip.Addr {
	// Without a TCP address, all clients share the zero one.
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
