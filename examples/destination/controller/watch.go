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

// pollInterval is the interval of reads of a watched file.
const pollInterval = time.Second

// Load reads a file and serves its configuration, which it returns. The error joins a
// [*FileError] for each error in the file, or is the error of the read.
//
// watch, which must be called once, then reads the file once a second until its ctx ends.
// An invalid file changes nothing: the last valid configuration stays active, and each
// error is logged with file, line and reason, once per content. The content is compared,
// not the time, so renames and swapped symbolic links are noticed. Replace the file in one
// of these ways, because a file that is written in place may be read half-written. A file
// that is not regular, such as a pipe, is not watched.
func (c *Controller) Load(path string) (cfg Config, watch func(ctx context.Context), err error) {
	w := &watched{c: c, path: path}
	if cfg, err = w.read(); err != nil {
		return Config{}, nil, err
	}
	return cfg, w.watch, nil
}

// watched is a file and its last content.
type watched struct {
	c    *Controller
	path string
	seen [sha256.Size]byte
}

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

// read applies the file if its content has changed, and returns the configuration. An
// unreadable file counts as changed content once, so that it is reported once.
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

// report logs each error on its own line.
func (w *watched) report(ctx context.Context, err error) {
	const message = "bad configuration, serving the last good one"
	mistakes := fileErrors(err)
	for _, m := range mistakes {
		w.c.log.ErrorContext(ctx, message,
			slog.String("file", m.File), slog.Int("line", m.Line), slog.String("reason", m.Reason))
	}
	if len(mistakes) == 0 {
		w.c.log.ErrorContext(ctx, message, slog.String("file", w.path), slog.Any("reason", err))
	}
}

// fileErrors splits a joined error.
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
