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
	"github.com/gotower/gotower/examples/internal/resident"
)

// reloader reloads the configuration when its file changes, or any file that it refers to, such
// as a certificate.
type reloader struct {
	parse  func() (*config.Config, error)
	log    *slog.Logger
	load   func(*config.Config) error
	every  time.Duration // how often to look for changes
	loaded func(error)   // receives each load's result

	started *config.Config   // the configuration at start
	seen    []config.Content // files in the last configuration, valid or not, as last read
	again   time.Time        // when to retry a valid configuration that could not be loaded; otherwise zero
}

// run looks for changes until ctx ends, and reloads the configuration after each change or
// signal. An invalid configuration is logged, and the last valid one stays in use. A valid one
// may still fail to load, for example because an address is in use; run retries it after ten
// intervals.
func (r *reloader) run(ctx context.Context, signals <-chan os.Signal) {
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	resident.UnmapFiles() // those of the start, most of which requests do not need
	for {
		signaled := false // by SIGHUP, and not by the tick
		select {
		case <-ctx.Done():
			return
		case <-signals:
			// A signal reloads even without a change, for example after a failed load.
			signaled = true
		case <-tick.C:
		}
		if r.changed() || signaled || !r.again.IsZero() && !time.Now().Before(r.again) {
			r.reload()
		}
	}
}

// reload parses the file and loads the configuration, and passes the result to r.loaded. If the file is
// invalid or cannot be loaded, the last configuration stays in use. Only in the second case, it sets
// r.again, because an invalid file cannot become valid without a change.
func (r *reloader) reload() {
	// c may be set together with an error, so that the files it refers to are watched.
	c, err := r.parse()
	if c != nil {
		r.seen = c.Contents()
	}
	// An earlier retry is obsolete.
	r.again = time.Time{}
	if err == nil {
		if err = r.load(c); err != nil {
			// Something outside of the file, such as a port, prevents it, so try again later.
			r.again = time.Now().Add(10 * r.every)
		}
	}
	r.loaded(err)
	if err != nil {
		r.log.Error("the configuration was not loaded, the last one stays in use", "err", err)
		return
	}
	r.log.Info("configuration loaded", "services", len(c.Services), "routes", len(c.Routes))
	// These fields have changed since the start, and will not take effect before a restart.
	if fields := unusedChanges(r.started, c); len(fields) > 0 {
		r.log.Warn("changed fields need a restart", "fields", fields)
	}
}

// unusedChanges returns the names of fields that differ between started and c, but that the
// gateway reads only at start.
func unusedChanges(started, c *config.Config) (fields []string) {
	for _, f := range []struct {
		name     string
		was, now any
	}{
		{"accessLog.format", started.AccessLog.LogFormat(), c.AccessLog.LogFormat()}, {"admin", started.Admin, c.Admin},
		{"drainDelay", started.DrainDelay, c.DrainDelay}, {"drainTimeout", started.DrainTimeout, c.DrainTimeout},
		{"kubernetes", started.Kubernetes, c.Kubernetes}, {"tracing", started.Tracing, c.Tracing},
	} {
		// The values are of different types, so they are compared by reflection.
		if !reflect.DeepEqual(f.was, f.now) {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// changed reports whether a file's content has changed since the last call to changed or reload,
// and remembers the new content in r.seen.
func (r *reloader) changed() bool {
	changed := false
	for i, f := range r.seen {
		now, _ := f.Read() // the next load reports a file that cannot be read
		if !bytes.Equal(now, f.Data) {
			if !changed {
				r.seen = slices.Clone(r.seen) // the configuration shares it
			}
			r.seen[i].Data = now
			changed = true
		}
	}
	return changed
}

// merger loads the file's configuration together with a Kubernetes cluster's.
type merger struct {
	load    func(*config.Config) error
	watches bool // whether there is a cluster to watch

	mu            sync.Mutex
	file, cluster *config.Config // loaded last; cluster is nil until the first one is loaded
}

// setFile and setCluster replace one of the two configurations, and load both together.
func (m *merger) setFile(c *config.Config) error    { return m.set(c, nil) }
func (m *merger) setCluster(c *config.Config) error { return m.set(nil, c) }

// set loads file and cluster together. A nil argument stands for the configuration that was
// loaded last.
func (m *merger) set(file, cluster *config.Config) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Load both together, because one may refer to the other.
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
	// A configuration that could not be loaded must not become part of the next one.
	if err == nil {
		m.file = file
		m.cluster = cluster
	}
	return err
}

// isComplete returns false as long as a cluster is watched but its routes have not been loaded
// yet.
func (m *merger) isComplete() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.watches || m.cluster != nil
}
