package controller

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// pollInterval is how often a watched file is read.
const pollInterval = time.Second / 2

// Load reads the configuration file at path, passes the configuration to [Controller.Set]
// and returns it. The error joins a [*FileError] for each mistake in the file, or is the
// error of reading the file.
//
// Call watch once. It reads the file twice a second until ctx ends, and applies each changed
// content. If the new content is invalid, the last valid configuration stays active.
// watch then logs each error once, with file, line and reason.
//
// To change the configuration, rename a new file to path or change a symbolic link at path.
// Do not write to the existing file, because watch may read half of the new content. A file
// that is not regular, such as a pipe, is not watched.
func (c *Controller) Load(path string) (cfg Config, watch func(ctx context.Context), err error) {
	w := &watched{c: c, path: path}
	if cfg, err = w.read(); err != nil {
		return Config{}, nil, err
	}
	return cfg, w.watch, nil
}

// watched is a configuration file, with a hash of the content that was read last.
type watched struct {
	c    *Controller
	path string
	seen [sha256.Size]byte
}

// watch reads the file repeatedly until ctx ends, and logs the errors.
func (w *watched) watch(ctx context.Context) {
	if info, err := os.Stat(w.path); err == nil && !info.Mode().IsRegular() {
		<-ctx.Done()
		return
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if _, err := w.read(); err != nil {
				w.report(ctx, err)
			}
		}
	}
}

// read applies the file if its content has changed, and returns the configuration. If the
// content has not changed, it returns zero values. If the file cannot be read, read returns
// the error, but only once until the error or the content changes.
func (w *watched) read() (cfg Config, err error) {
	data, err := os.ReadFile(w.path)
	content := data
	if err != nil {
		content = []byte("unreadable: " + err.Error())
	}
	sum := sha256.Sum256(content)
	if sum == w.seen {
		return Config{}, nil
	}
	w.seen = sum
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	if cfg, err = Parse(w.path, data); err != nil {
		return Config{}, err
	}
	if err := w.c.Set(cfg); err != nil {
		return Config{}, fmt.Errorf("%s: %w", w.path, err)
	}
	w.c.log.Info("configuration applied", slog.String("file", w.path), slog.Int("destinations", len(cfg.Destinations)))
	return cfg, nil
}

// report logs each [*FileError] in err as a separate record. It logs any other error as one
// record.
func (w *watched) report(ctx context.Context, err error) {
	const message = "invalid configuration, the last valid one stays active"
	mistakes := fileErrors(err)
	for _, m := range mistakes {
		w.c.log.ErrorContext(ctx, message,
			slog.String("file", m.File), slog.Int("line", m.Line), slog.String("reason", m.Reason))
	}
	if len(mistakes) == 0 {
		w.c.log.ErrorContext(ctx, message, slog.String("file", w.path), slog.Any("reason", err))
	}
}

// fileErrors returns the errors of type [*FileError] in err, which may be a joined error.
func fileErrors(err error) []*FileError {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return nil
	}
	var found []*FileError
	for _, e := range joined.Unwrap() {
		if m, ok := errors.AsType[*FileError](e); ok {
			found = append(found, m)
		}
	}
	return found
}
