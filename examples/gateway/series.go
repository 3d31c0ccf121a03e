package main

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/profiles"
)

// registry is a registry of Prometheus that can delete series.
type registry struct {
	*prometheus.Registry

	mu      sync.Mutex
	vectors []vector // registered by MustRegister
}

// vector is a prometheus.CounterVec, GaugeVec or HistogramVec.
type vector interface {
	prometheus.Collector
	Delete(labels prometheus.Labels) bool
}

// MustRegister is part of [prometheus.Registerer].
func (r *registry) MustRegister(all ...prometheus.Collector) {
	r.Registry.MustRegister(all...)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range all {
		if v, ok := c.(vector); ok {
			r.vectors = append(r.vectors, v)
		}
	}
}

// deleteFunc deletes the series of vectors for which the function del returns true.
func (r *registry) deleteFunc(del func(labels prometheus.Labels) bool) {
	r.mu.Lock()
	vectors := slices.Clone(r.vectors)
	r.mu.Unlock()
	for _, v := range vectors {
		all := make(chan prometheus.Metric)
		go func() {
			defer close(all)
			v.Collect(all)
		}()
		var deleted []prometheus.Labels
		for series := range all {
			var written dto.Metric
			_ = series.Write(&written) // the series of vectors have no errors
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

// deleteSeries deletes the series of routes that are not in p, and of services that are not in
// the current configuration. Otherwise routes with changing names would fill the memory. The
// router calls deleteSeries before p takes effect.
func (g *gateway) deleteSeries(p *profiles.Profile) {
	g.loading.Lock() // load must not make the series of a service before the service is current
	defer g.loading.Unlock()
	routes := map[string]bool{"": true}
	for _, r := range p.Routes {
		routes[r.Name] = true
	}
	services := g.current.Load().services
	g.registry.deleteFunc(func(labels prometheus.Labels) bool {
		target := labels["target"]
		return !routes[labels["route"]] || target != "" && services[config.Name(target)] == nil
	})
}
