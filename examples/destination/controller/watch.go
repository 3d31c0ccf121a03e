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

// Load reads the configuration file at path, passes it to [Controller.Set] and returns it. If the
// file cannot be read, the error says so; otherwise it joins an [*Error] for each mistake in the
// file.
//
// Call watch once to follow the file until ctx ends. It reads the file twice a second and applies
// new content. If that is invalid, the last valid configuration stays active, and each error is
// logged once, with file, line and reason.
//
// To change the configuration, rename a new file to path or replace a symbolic link at path. Do
// not write to the existing file, because watch might read half of it. A file that is not
// regular, such as a pipe, is not watched.
func (c *Controller) Load(path string) (cfg Config, watch func(ctx context.Context), err error) {
	w := &watched{c: c, path: path}
	if cfg, err = w.read(); err != nil {
		return Config{}, nil, err
	}
	return cfg, w.watch, nil
}

// watched is a configuration file with a hash of what was last read from it.
type watched struct {
	c    *Controller
	path string
	seen [sha256.Size]byte
}

// watch rereads the file until ctx ends, and logs errors.
func (w *watched) watch(ctx context.Context) {
	// Reading a pipe again would block or consume its content.
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

// read applies the file if its content has changed, and otherwise returns zero values. If the
// file cannot be read, read returns the error only the first time, so that it is not logged twice
// a second.
func (w *watched) read() (cfg Config, err error) {
	data, err := os.ReadFile(w.path)
	// An error is hashed like a content, so that the same one is reported only once.
	content := data
	if err != nil {
		content = []byte("unreadable: " + err.Error())
	}
	// Hash the content, because a replaced file may keep its size and time.
	sum := sha256.Sum256(content)
	if sum == w.seen {
		return Config{}, nil
	}
	// Remember invalid content too, so that its mistakes are reported only once.
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

// report logs each [*Error] in err as a record of its own, and any other error as one record.
func (w *watched) report(ctx context.Context, err error) {
	const message = "invalid configuration, the last valid one stays active"
	mistakes := fileErrors(err)
	for _, m := range mistakes {
		w.c.log.ErrorContext(ctx, message,
			slog.String("file", m.File), slog.Int("line", m.Line), slog.String("reason", m.Mistake()))
	}
	// err is not about the content, but about reading the file.
	if len(mistakes) == 0 {
		w.c.log.ErrorContext(ctx, message, slog.String("file", w.path), slog.Any("reason", err))
	}
}

// fileErrors returns the [*Error] values in err, which may be a joined error.
func fileErrors(err error) []*Error {
	// Join's result has this method.
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return nil
	}
	var mistakes []*Error
	for _, e := range joined.Unwrap() {
		if m, ok := errors.AsType[*Error](e); ok {
			mistakes = append(mistakes, m)
		}
	}
	return mistakes
}
