package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
)

// serviceHealth tracks how many of a service's endpoints are healthy, and logs each change. An
// endpoint is unhealthy if it cannot be reached, is ejected, or fails its health check. Methods
// may be called concurrently.
type serviceHealth struct {
	name string
	log  *slog.Logger

	mu          sync.Mutex
	endpoints   func() []balance.EndpointState // asks the balancer; nil until follow is called
	down        map[resolve.ID]error           // reported by the balancer's events
	unhealthy   map[resolve.ID]error           // reported by health checks
	target      error                          // why there is no endpoint
	resolver    error                          // the resolver's last error, until it answers again
	endpointIDs map[resolve.ID]bool            // endpoints in the last summary
	last        summary
}

// summary is a service's health: how many of its endpoints are healthy, and how many there are.
type summary struct {
	healthy, all int
	unresolved   bool // the resolver fails, or knows no endpoints
}

// isFull reports whether all endpoints are healthy, and there is at least one.
func (s summary) isFull() bool { return s.healthy == s.all && s.all > 0 && !s.unresolved }

// newHealth returns the health of the service name, about whose endpoints nothing is known yet.
func newHealth(name string, log *slog.Logger) *serviceHealth {
	return &serviceHealth{name: name, log: log, down: make(map[resolve.ID]error), unhealthy: make(map[resolve.ID]error)}
}

// follow sets the function that returns the current endpoints.
func (h *serviceHealth) follow(endpoints func() []balance.EndpointState) {
	h.change(func() { h.endpoints = endpoints })
}

// event receives events from the balancer.
func (h *serviceHealth) event(e balance.Event) {
	// f runs under the lock, and change then logs the health if it differs.
	h.change(func() {
		switch e.Kind {
		case balance.EndpointDown, balance.EndpointEjected:
			h.down[e.ID] = e.Err
		case balance.EndpointUp:
			delete(h.down, e.ID)
		case balance.TargetDown:
			h.target = e.Err
		case balance.TargetUp:
			h.target = nil
		}
	})
}

// checked records the result of an endpoint's health checks: nil, or why it is unhealthy.
func (h *serviceHealth) checked(id resolve.ID, err error) {
	h.change(func() {
		delete(h.unhealthy, id)
		if err != nil {
			h.unhealthy[id] = err
		}
	})
}

// watch returns r, but records its errors. While the last known endpoints stay in use, a DNS
// outage would otherwise go unnoticed.
func (h *serviceHealth) watch(r resolve.Resolver) resolve.Resolver {
	return resolve.Func(func(ctx context.Context, name string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			for update, err := range r.Resolve(ctx, name) {
				// When ctx ends, the error is only the end of the watch.
				if ctx.Err() == nil {
					h.change(func() { h.resolver = err })
				}
				if !yield(update, err) {
					return
				}
			}
		}
	})
}

// change calls f and logs the health if it has changed.
func (h *serviceHealth) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	now, reason := h.summary()
	if now == h.last {
		return
	}
	// The first summary is not logged if everything is healthy.
	switch {
	case !now.isFull():
		h.log.Warn("the service has unhealthy endpoints", "service", h.name, "health", now.String(), "err", reason)
	case !h.last.isFull() && h.last != (summary{}):
		h.log.Info("all endpoints of the service are healthy", "service", h.name, "health", now.String())
	}
	h.last = now
}

// String returns the health in the form "0 of 2 healthy".
func (s summary) String() string { return fmt.Sprintf("%d of %d healthy", s.healthy, s.all) }

// summary returns the health, and a reason if it is not full. The caller must hold mu.
func (h *serviceHealth) summary() (s summary, reason error) {
	// Before follow, nothing is known.
	if h.endpoints == nil {
		return s, nil
	}
	reason = h.target
	listed := make(map[resolve.ID]bool)
	for _, e := range h.endpoints() {
		listed[e.ID] = true
		s.all++
		// Both maps only contain errors that are not nil.
		if err := cmp.Or(h.unhealthy[e.ID], h.down[e.ID]); err != nil {
			reason = err
		} else {
			s.healthy++
		}
	}
	for _, m := range []map[resolve.ID]error{h.down, h.unhealthy} {
		// Keep what is reported about endpoints that have not been listed yet: their events may come first.
		maps.DeleteFunc(m, func(id resolve.ID, _ error) bool { return h.endpointIDs[id] && !listed[id] }) // the endpoint was removed
	}
	h.endpointIDs = listed
	// A target without endpoints and without an error was scaled to zero.
	s.unresolved = h.resolver != nil || s.all == 0 && h.target != nil
	return s, cmp.Or(h.resolver, reason)
}

// now returns the current health, and whether the service is down: none of its endpoints is
// healthy, or its name cannot be resolved. A service that was scaled to zero is not down.
func (h *serviceHealth) now() (s summary, isDown bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, _ = h.summary()
	// An error other than ErrNoEndpoints means that the service should have endpoints.
	isEmpty := s.all == 0 && h.resolver == nil && (h.target == nil || errors.Is(h.target, discover.ErrNoEndpoints))
	return s, s.healthy == 0 && !isEmpty
}

// writeHealth responds to /readyz with one line for each service that is not fully healthy. If
// all services are down, the status is 503, so that a load balancer prefers other gateways.
func writeHealth(w http.ResponseWriter, services map[config.Name]*upstream) {
	var lines strings.Builder
	all := 0
	down := 0
	for _, name := range slices.Sorted(maps.Keys(services)) {
		// A service with a fixed response has no health.
		h := services[name].health
		if h == nil {
			continue
		}
		all++
		s, isDown := h.now()
		if isDown {
			down++
		}
		if !s.isFull() {
			fmt.Fprintf(&lines, "%s: %s\n", name, s)
		}
	}
	// Even a gateway with some services that are down can serve the others.
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if all > 0 && down == all {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "all services are down\n"+lines.String())
		return
	}
	_, _ = io.WriteString(w, "ok\n"+lines.String())
}

// unavailable returns a layer that responds with 503, or UNAVAILABLE for gRPC, if none of the
// service's endpoints can be used. Linkerd responds with 504, which suggests a slow service
// instead.
func unavailable(name string) httplayer.Layer {
	return func(next httplayer.Service) httplayer.Service { return &available{next, name} }
}

// available turns the error of a service that fails fast, because no endpoint is ready, into one with
// status 503. It is what [unavailable] adds to a service.
type available struct {
	httplayer.Service
	name string
}

// Call sends req, and converts fail-fast of the service below to an error with status 503.
func (s *available) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := s.Service.Call(ctx, req)
	// Other errors are the request's own.
	if err == nil || !errors.Is(err, layer.ErrFailFast) {
		return rsp, err
	}
	// The balancer may tell when an endpoint will be tried again.
	delay, _ := layer.RetryAfter(err)
	return nil, &layer.Error{Layer: "service", Target: s.name, Kind: layer.ErrNotReady, RetryAfter: delay, Err: &httplayer.StatusError{
		Code: http.StatusServiceUnavailable, Reason: err.Error(), Detail: "no endpoint of the service can be used",
	}}
}

// Next returns the inner service for [layer.Describe].
func (s *available) Next() httplayer.Service { return s.Service }

func (s *available) Describe() layer.Node { return layer.Node{Name: "available"} }
