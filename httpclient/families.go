package httpclient

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/gotower/gotower/layer/httplayer"
)

// connectDelay is the time after which an attempt to connect yields to the addresses of the other
// family. It is that of net.Dialer.FallbackDelay.
const connectDelay = 300 * time.Millisecond

// families knows which IP family of a target can be reached. A name often has addresses of both
// families although one of them leads nowhere: packets to it are lost, so that an attempt to connect
// takes its whole timeout. net.Dialer tries the other family after connectDelay (RFC 8305). Here, the
// attempt ends then, and the balancer picks another endpoint.
type families struct {
	mu      sync.Mutex
	dialers map[*dialer]struct{}
}

// dialer connects to one endpoint. The mutex of families guards its state.
type dialer struct {
	families *families
	is4      bool // the address is an IPv4 address
	failed   bool // the last attempt has failed
	slow     bool // the last attempt has taken longer than connectDelay, so that the next one may
}

// withDialer returns an option that connects to an endpoint by a new dialer. addr only tells the IP
// family: the address and port to which dial connects are those of the endpoint. Until ctx ends, which
// is when the endpoint is removed, other dialers know this one when they decide whether to yield.
func (f *families) withDialer(ctx context.Context, addr netip.Addr) httplayer.EndpointOption {
	d := &dialer{families: f, is4: addr.Unmap().Is4()}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dialers[d] = struct{}{}
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.dialers, d)
	})
	return httplayer.WithDialContext(d.dial)
}

// yields reports whether an attempt that takes longer than connectDelay must end: there are addresses
// of the other family that have not failed, and this endpoint's last attempt was not slow too.
func (d *dialer) yields() bool {
	d.families.mu.Lock()
	defer d.families.mu.Unlock()
	// A server that is just slow must be reached at the second attempt.
	if d.slow {
		return false
	}
	for candidate := range d.families.dialers {
		if candidate.is4 != d.is4 && !candidate.failed {
			return true
		}
	}
	return false
}

// report notes the result of an attempt: whether it connected, and whether it took less than
// connectDelay.
func (d *dialer) report(connected, quick bool) {
	d.families.mu.Lock()
	defer d.families.mu.Unlock()
	d.failed, d.slow = !connected, !quick
}

// dial connects to addr. If that takes longer than connectDelay and yields returns true then, dial gives up,
// so that the balancer can pick an endpoint of the other family.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var yielded bool               // whether the timer has canceled the attempt
	decided := make(chan struct{}) // closed when yielded is set
	timer := time.AfterFunc(connectDelay, func() {
		defer close(decided)
		if yielded = d.yields(); yielded {
			cancel()
		}
	})
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	quick := timer.Stop()
	if !quick {
		// The timer's function may be running. Wait for it, because it sets yielded.
		<-decided
	}
	d.report(err == nil, quick)
	if err != nil && yielded {
		err = fmt.Errorf("dial %s %s: no connection after %v, and there are addresses of the other IP family", network, addr, connectDelay)
	}
	return conn, err
}
