package file

import "time"

// state is what is known at a moment. It does not change, but is replaced.
type state struct {
	latest *content      // nil until the first look of the polling
	good   *content      // the last one without an error; nil if there was none
	over   chan struct{} // closed when there is another state
}

// poll looks at the file, at once and then at each tick, until no stream is
// left.
func (r *Resolver) poll(idle <-chan struct{}) {
	ticker := time.NewTicker(r.every)
	defer ticker.Stop()
	for r.wanted() {
		r.publish(r.file.look())
		select {
		case <-ticker.C:
		case <-idle:
		}
	}
}

// wanted decides under the lock, so that a stream which comes now either finds
// the goroutine staying or starts another one.
func (r *Resolver) wanted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.polling = r.streams > 0
	return r.polling
}

// publish wakes the streams if they do not know c yet.
func (r *Resolver) publish(c *content) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state.latest == c {
		return
	}
	if c.err == nil {
		r.good = c
	}
	was := r.state
	r.state = &state{latest: c, good: r.good, over: make(chan struct{})}
	close(was.over)
}
