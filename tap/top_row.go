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

// oneFailure leaves room for 2³² ends between two looks.
const oneFailure = 1 << 32

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
	ends              atomic.Uint64 // each adds one, and a failure oneFailure as well
	best, worst, last atomic.Int64  // nanoseconds; set once something ended
	times             histogram     // of what ended

	seen    uint64  // of ends, at the last sample
	counted uint64  // ended, until then
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
	r.times.add(took) // before it counts: what counts has a quantile
	one := uint64(1)
	if !succeeded(end, status) {
		one += oneFailure
	}
	r.ends.Add(one)
}

// forget takes back a beginning whose end nobody will tell.
func (r *row) forget() { r.began.Add(^uint64(0)) }

// look brings up to date what the reader of the table knows of ends. Both
// numbers are of one moment, as they are read at once.
func (r *row) look() {
	ends := r.ends.Load()
	news := ends - r.seen
	r.seen = ends
	r.counted += news % oneFailure
	r.failed += news / oneFailure
	r.times.fold()
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
