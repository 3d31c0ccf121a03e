package layer

import "time"

// sweep drops what is idle, until the cache ends.
func (c *Cache[K, Req, Rsp]) sweep(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			for i := range c.shards {
				c.sweepShard(&c.shards[i], now)
			}
			c.swept.Add(1)
			c.freed.Wake()
		case <-c.ctx.Done():
			for i := range c.shards {
				c.release(c.shards[i].end())
			}
			return
		}
	}
}

func (c *Cache[K, Req, Rsp]) sweepShard(s *cacheShard[K, Req, Rsp], now time.Time) {
	var over []*cacheEntry[K, Req, Rsp]
	for _, e := range s.all() {
		if e.isOver(now, c.policy.IdleTimeout) {
			over = append(over, e)
		}
	}
	if len(over) == 0 {
		return
	}
	s.drop(over)
	for _, e := range over {
		e.handle.last.CompareAndSwap(e, nil)
	}
	c.release(len(over))
}
