package httplayer

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// cutOff is the addresses of which a connection was cut lately, because its client
// took back too many streams. Whoever attacks comes again at once, and what is cut
// costs more than what waits: so the next connection of such an address that is
// hasty is left in its socket for a while before it is cut as well. Of the same
// address, who is not hasty does not wait.
type cutOff struct {
	mu   sync.Mutex
	last map[netip.Prefix]time.Time // when, of each as clientOf has it
}

const (
	cutOffKept  = time.Minute
	cutOffMost  = 1024 // addresses; beyond that some are forgotten
	cutOffPause = time.Second
)

// add notes that a connection of addr was cut.
func (c *cutOff) add(addr net.Addr) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = make(map[netip.Prefix]time.Time)
	}
	if len(c.last) >= cutOffMost {
		c.forget(now)
	}
	c.last[clientOf(addr.String())] = now
}

// forget makes room for one: it drops what is too old, or if nothing is, any.
func (c *cutOff) forget(now time.Time) {
	for n, at := range c.last {
		if now.Sub(at) > cutOffKept {
			delete(c.last, n)
		}
	}
	for n := range c.last {
		if len(c.last) < cutOffMost {
			return
		}
		delete(c.last, n)
	}
}

// has reports whether a connection of addr was cut lately.
func (c *cutOff) has(addr net.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, was := c.last[clientOf(addr.String())]
	return was && time.Since(at) <= cutOffKept
}
