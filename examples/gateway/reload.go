package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/gotower/gotower/examples/gateway/config"
)

// reloader loads the configuration again when its file, or a file to which it refers, changes.
type reloader struct {
	path  string
	log   *slog.Logger
	load  func(*config.Config) error
	every time.Duration // between two looks at the files

	seen []config.Content // the files of the last valid configuration, as last read
}

// run looks for changes until ctx ends, and also on each signal. A configuration with
// mistakes is logged, and the last valid one stays in use.
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
		if r.changed() || asked {
			r.reload()
		}
	}
}

func (r *reloader) reload() {
	c, err := config.Load(r.path)
	if err == nil {
		err = r.load(c)
	}
	if err != nil {
		r.log.Error("the configuration was not loaded, the last one stays in use", "err", err)
		return
	}
	r.seen = c.Contents()
	r.log.Info("configuration loaded", "file", r.path, "services", len(c.Services), "routes", len(c.Routes))
}

// changed reports whether a file has another content than before.
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
