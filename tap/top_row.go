package tap

import (
	"math"
	"net/netip"
	"sync/atomic"
)

const (
	// podLabel and routeLabel are what rows are named by, as linkerd's top
	// does it.
	podLabel   = "pod"
	routeLabel = "route"

	// maxRowText bounds a path or a name in a row; what begins with the same
	// so many bytes is counted together.
	maxRowText = 256
)

// rowKey tells rows apart.
type rowKey struct {
	source, destination string // pods; "" where the address is the name
	from, to            netip.Addr
	method              string // "" by route
	path                string // by route, the route
	direction           Direction
}

// row is requests counted. Requests change it at any time; what is at the end
// belongs to who reads the table.
type row struct {
	key              rowKey
	authority, route string // of the first request

	began             atomic.Uint64
	failures          atomic.Uint64
	best, worst, last atomic.Int64 // nanoseconds; set once something ended
	times             histogram    // of what ended

	folded  uint64  // ended, and not in times any more
	counted uint64  // ended, at the last sample
	failed  uint64  // of these
	recent  float64 // requests, each the less the older it is
}

func newRow(key *rowKey) *row {
	r := &row{key: *key}
	r.best.Store(math.MaxInt64)
	return r
}

// end is told of a request that began here.
func (r *row) end(end *ResponseEnd, status int) {
	took := max(end.SinceRequestInit, 0)
	n := int64(took)
	for old := r.best.Load(); n < old && !r.best.CompareAndSwap(old, n); {
		old = r.best.Load()
	}
	for old := r.worst.Load(); n > old && !r.worst.CompareAndSwap(old, n); {
		old = r.worst.Load()
	}
	r.last.Store(n)
	r.times.add(took) // from here on it counts, see ended
	if !succeeded(end, status) {
		r.failures.Add(1)
	}
}

// forget takes back a beginning whose end nobody will tell.
func (r *row) forget() { r.began.Add(^uint64(0)) }

// ended is how many requests have ended, and how many of them failed. It is
// called by who reads the table. Failures are read first, as they are counted
// last.
func (r *row) ended() (n, failed uint64) {
	failed = r.failures.Load()
	n, large := r.times.total()
	if large {
		halved := r.times.fold()
		r.folded += halved
		n -= halved // which were added to in the meantime, but not taken from
	}
	return r.folded + n, failed
}

// nameOf is what a row calls an address: the pod, or else the address without
// its port.
func nameOf(labels map[string]string, addr netip.AddrPort) (string, netip.Addr) {
	if pod := labels[podLabel]; pod != "" {
		return cut(pod), netip.Addr{}
	}
	return "", addr.Addr()
}

// cut returns at most the first maxRowText bytes of s.
func cut(s string) string {
	if len(s) > maxRowText {
		return s[:maxRowText]
	}
	return s
}

// succeeded is linkerd's notion of a success, but that a request without a
// response is none. Status is 0 without a response.
func succeeded(end *ResponseEnd, status int) bool { return status != 0 && !end.Failed(status) }
