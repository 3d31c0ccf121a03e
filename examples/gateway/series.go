package main

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/profiles"
)

// registry is a Prometheus registry that can delete series.
type registry struct {
	*prometheus.Registry

	mu      sync.Mutex
	vectors []vector // all that MustRegister has registered
}

// vector is a prometheus.CounterVec, GaugeVec or HistogramVec.
type vector interface {
	prometheus.Collector
	Delete(labels prometheus.Labels) bool
}

// MustRegister implements [prometheus.Registerer].
func (r *registry) MustRegister(all ...prometheus.Collector) {
	r.Registry.MustRegister(all...)
	r.mu.Lock()
	defer r.mu.Unlock()
	// Only vectors have series that can be deleted.
	for _, c := range all {
		if v, ok := c.(vector); ok {
			r.vectors = append(r.vectors, v)
		}
	}
}

// deleteFunc deletes all series for whose labels del returns true.
func (r *registry) deleteFunc(del func(labels prometheus.Labels) bool) {
	r.mu.Lock()
	vectors := slices.Clone(r.vectors)
	r.mu.Unlock()
	for _, v := range vectors {
		// Collect sends while it holds the vector's lock, so deleting must wait until it has ended.
		all := make(chan prometheus.Metric)
		go func() {
			defer close(all)
			v.Collect(all)
		}()
		var deleted []prometheus.Labels
		for series := range all {
			// A series's labels can only be read by writing it.
			var written dto.Metric
			_ = series.Write(&written) // vectors return no errors
			labels := make(prometheus.Labels)
			for _, l := range written.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if del(labels) {
				deleted = append(deleted, labels)
			}
		}
		for _, labels := range deleted {
			v.Delete(labels)
		}
	}
}

// deleteSeries deletes series for routes that are not in p, and for services that are not
// configured. Otherwise routes whose names keep changing would fill the memory. The router calls
// it before p takes effect.
func (g *gateway) deleteSeries(p *profiles.Profile) {
	g.loading.Lock() // load must not create series for a service that is not current yet
	defer g.loading.Unlock()
	// "" stands for requests without a route.
	routes := map[string]bool{"": true}
	for _, r := range p.Routes {
		routes[r.Name] = true
	}
	current := g.current.Load()
	for i := range current.TCPRoutes {
		routes[string(current.TCPRoutes[i].Name)] = true
	}
	removed := g.responses.keep(routes)
	services := current.services
	// A service that is no longer configured may still have series.
	for name := range g.measured {
		removed = removed || services[name] == nil
	}
	g.measured = services
	if !removed {
		return // comparing all series takes longer than the rest of a reload
	}
	g.ended.keep(current)
	// The name of a service is the label "target" of attempts, and "service" of connections.
	lacks := func(name string) bool { return name != "" && services[config.Name(name)] == nil }
	g.registry.deleteFunc(func(labels prometheus.Labels) bool {
		return !routes[labels["route"]] || lacks(labels["target"]) || lacks(labels["service"])
	})
}
