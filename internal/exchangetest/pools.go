package exchangetest

import (
	"fmt"
	"sync"
)

// pools counts the values of some pools. Each value has to be returned once.
type pools struct {
	of   []*sync.Pool
	made map[*sync.Pool]func() any // original functions New

	mu  sync.Mutex
	out map[any]bool // all values that were made
}

// watch empties the pools and counts the values that are made from then on.
func watch(of []*sync.Pool) *pools {
	p := &pools{of: of, made: make(map[*sync.Pool]func() any), out: make(map[any]bool)}
	for _, pool := range of {
		p.made[pool] = pool.New
		*pool = sync.Pool{New: func() any {
			v := p.made[pool]()
			p.mu.Lock()
			defer p.mu.Unlock()
			p.out[v] = true
			return v
		}}
	}
	return p
}

// restore undoes watch.
func (p *pools) restore() {
	for pool, made := range p.made {
		*pool = sync.Pool{New: made}
	}
}

// violation empties the pools. It returns a text if a value was returned twice or, if exact is true,
// was not returned.
func (p *pools) violation(exact bool) string {
	twice, back := 0, make(map[any]bool)
	for _, pool := range p.of {
		made := pool.New
		pool.New = nil
		for v := pool.Get(); v != nil; v = pool.Get() {
			if back[v] {
				twice++
			}
			back[v] = true
			delete(p.out, v)
		}
		pool.New = made
	}
	lost := len(p.out)
	clear(p.out)
	switch {
	case twice > 0:
		return fmt.Sprintf("%d buffers were returned twice", twice)
	case exact && lost > 0:
		return fmt.Sprintf("%d buffers were not returned", lost)
	}
	return ""
}
