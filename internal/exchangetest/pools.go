package exchangetest

import (
	"fmt"
	"sync"
)

// pools counts the values in some pools, each of which must be returned once.
type pools struct {
	list     []*sync.Pool
	newFuncs map[*sync.Pool]func() any // original functions New

	mu  sync.Mutex
	out map[any]bool // all values that were made
}

// watch empties the pools and counts the values that are made from then on.
func watch(list []*sync.Pool) *pools {
	p := &pools{list: list, newFuncs: make(map[*sync.Pool]func() any), out: make(map[any]bool)}
	for _, pool := range list {
		p.newFuncs[pool] = pool.New
		// An empty pool replaces the old one, and records each value that it makes.
		*pool = sync.Pool{New: func() any {
			v := p.newFuncs[pool]()
			p.mu.Lock()
			defer p.mu.Unlock()
			p.out[v] = true
			return v
		}}
	}
	return p
}

// restore gives the pools their original New functions again. The pools are then empty.
func (p *pools) restore() {
	for pool, newFunc := range p.newFuncs {
		*pool = sync.Pool{New: newFunc}
	}
}

// violation empties the pools. It returns a text if a value was returned twice or, if exact is true,
// was not returned.
func (p *pools) violation(exact bool) string {
	twice := 0
	returned := make(map[any]bool)
	for _, pool := range p.list {
		// Without New, Get returns nil once the pool is empty.
		newFunc := pool.New
		pool.New = nil
		for v := pool.Get(); v != nil; v = pool.Get() {
			if returned[v] {
				twice++
			}
			returned[v] = true
			delete(p.out, v)
		}
		pool.New = newFunc
	}
	missing := len(p.out)
	clear(p.out)
	switch {
	case twice > 0:
		return fmt.Sprintf("%d buffers were returned twice", twice)
	case exact && missing > 0:
		return fmt.Sprintf("%d buffers were not returned", missing)
	}
	return ""
}
