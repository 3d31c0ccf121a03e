package tap

import (
	"math"
	"net/netip"
	"sync/atomic"
	"time"
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

const (
	// oneFailure leaves room for 2³² ends between two looks.
	oneFailure = 1 << 32

	// gone marks the beginnings of a row that was let go: no more will be
	// counted in it.
	gone = 1 << 63
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
	hash             uint64 // of key
	authority, route string // of the first request

	began             atomic.Uint64
	ends              atomic.Uint64 // each adds one, and a failure oneFailure as well
	best, worst, last atomic.Int64  // nanoseconds; set once something ended
	times             histogram     // of what ended

	seen    uint64        // of ends, at the last sample
	counted uint64        // ended, until then
	failed  uint64        // of these
	recent  float32       // requests, each the less the older it is
	ended   float32       // age of the table, in seconds, when it was last seen that something had ended
	used    time.Duration // the same when it was last seen in use; 0: never looked at
}

func newRow(key *rowKey, hash uint64) *row {
	r := &row{key: *key, hash: hash}
	r.best.Store(math.MaxInt64)
	return r
}

// enter counts a beginning, unless the row was let go since it was found.
func (r *row) enter() bool { return r.began.Add(1)&gone == 0 }

// end is told of a request that began here.
func (r *row) end(end *ResponseEnd, status int) {
	took := max(end.SinceRequestInit, 0)
	r.within(int64(took), int64(took))
	r.last.Store(int64(took))
	r.times.add(took) // before it counts: what counts has a quantile
	one := uint64(1)
	if !succeeded(end, status) {
		one += oneFailure
	}
	r.ends.Add(one)
}

// within widens what is between best and worst.
func (r *row) within(best, worst int64) {
	for old := r.best.Load(); best < old && !r.best.CompareAndSwap(old, best); {
		old = r.best.Load()
	}
	for old := r.worst.Load(); worst > old && !r.worst.CompareAndSwap(old, worst); {
		old = r.worst.Load()
	}
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

// open is how many did not end. What was counted had begun before.
func (r *row) open() uint64 { return r.began.Load() - r.counted }

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
