package reliability

import (
	"net/http"
	"sync/atomic"
)

// holder answers at once, but for /hold: that it does once it may, or when the
// caller has gone.
type holder struct {
	release             chan struct{} // closed when it may; nil: never
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
