package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/gotower/gotower/examples/gateway/config"
)

// reloader loads the configuration again when the configuration file changes. It does the same
// for a file to which the configuration refers, such as a certificate.
type reloader struct {
	path  string
	log   *slog.Logger
	load  func(*config.Config) error
	every time.Duration // interval of the checks for changes

	started *config.Config   // configuration at start
	seen    []config.Content // files of the last configuration, valid or not, as last read
	again   time.Time        // when to load a valid configuration again after a failure; zero if none failed
}

// run checks the files for changes at intervals until ctx ends, and loads a changed
// configuration. It also loads the configuration after each signal, changed or not. An
// invalid configuration is logged, and the last valid one stays in use. If a valid one cannot be
// loaded, for example because an address is in use, run tries again after ten intervals.
func (r *reloader) run(ctx context.Context, signals <-chan os.Signal) {
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-signals:
			asked = true
		case <-tick.C:
		}
		if r.changed() || asked || !r.again.IsZero() && !time.Now().Before(r.again) {
			r.reload()
		}
	}
}

func (r *reloader) reload() {
	c, err := config.Load(r.path)
	if c != nil {
		r.seen = c.Contents()
	}
	r.again = time.Time{}
	if err == nil {
		if err = r.load(c); err != nil {
			r.again = time.Now().Add(10 * r.every)
		}
	}
	if err != nil {
		r.log.Error("the configuration was not loaded, the last one stays in use", "err", err)
		return
	}
	r.log.Info("configuration loaded", "file", r.path, "services", len(c.Services), "routes", len(c.Routes))
	if fields := unusedChanges(r.started, c); len(fields) > 0 {
		r.log.Warn("changed fields need a restart", "fields", fields)
	}
}

// unusedChanges returns the names of the fields in which c differs from started, the configuration
// at start, if the gateway reads these fields only at start.
func unusedChanges(started, c *config.Config) (fields []string) {
	for _, f := range []struct {
		name     string
		was, now any
	}{
		{"accessLog.format", started.AccessLog.Format, c.AccessLog.Format}, {"admin", started.Admin, c.Admin},
		{"drainTimeout", started.DrainTimeout, c.DrainTimeout}, {"kubernetes", started.Kubernetes, c.Kubernetes},
		{"tracing", started.Tracing, c.Tracing},
	} {
		if !reflect.DeepEqual(f.was, f.now) {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// changed reports whether the content of a file has changed since the last call of changed
// or reload. It stores the new content in r.seen.
func (r *reloader) changed() bool {
	changed := false
	for i, f := range r.seen {
		now, _ := os.ReadFile(f.Path) // an unreadable file is an error of the next load
		if !bytes.Equal(now, f.Data) {
			if !changed {
				r.seen = slices.Clone(r.seen) // it belongs to the configuration
			}
			r.seen[i].Data, changed = now, true
		}
	}
	return changed
}

// merger joins the configuration of the file and that of a Kubernetes cluster, and loads
// the result.
type merger struct {
	load    func(*config.Config) error
	watches bool // whether the gateway watches a cluster

	mu            sync.Mutex
	file, cluster *config.Config // last loaded configurations; cluster may be nil
}

func (m *merger) setFile(c *config.Config) error    { return m.set(c, nil) }
func (m *merger) setCluster(c *config.Config) error { return m.set(nil, c) }

// set merges the arguments file and cluster, and loads the result. If file is nil, set uses
// the last loaded configuration of the file. If cluster is nil, set uses the last loaded
// configuration of the cluster.
func (m *merger) set(file, cluster *config.Config) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if file == nil {
		file = m.file
	}
	if cluster == nil {
		cluster = m.cluster
	}
	merged, err := file.Merge(cluster)
	if err == nil {
		err = m.load(merged)
	}
	if err == nil {
		m.file, m.cluster = file, cluster
	}
	return err
}

// isComplete returns false if the gateway watches a cluster and the routes of the cluster are not
// loaded yet. Otherwise it returns true.
func (m *merger) isComplete() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.watches || m.cluster != nil
}
