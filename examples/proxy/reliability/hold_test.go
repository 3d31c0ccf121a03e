package reliability

import (
	"net/http"
	"sync/atomic"
)

// holder is a server that responds immediately, except to /hold: such a request waits until it is
// released or canceled.
type holder struct {
	release             chan struct{} // closed to release requests; nil: never
	started, open, peak atomic.Int64
}

func (h *holder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/hold" {
		h.started.Add(1)
		defer h.open.Add(-1)
		open := h.open.Add(1)
		for peak := h.peak.Load(); open > peak && !h.peak.CompareAndSwap(peak, open); {
			peak = h.peak.Load()
		}
		select {
		case <-h.release:
		case <-r.Context().Done():
			return
		}
	}
	_, _ = w.Write([]byte("hello"))
}
