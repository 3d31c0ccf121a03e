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

// pollEvery is how often a watched file is read.
const pollEvery = time.Second

// Load reads a configuration file. The error joins a [*FileError] for every
// mistake in it, or says why it cannot be read.
func Load(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, data)
}

// Watch serves what a file says, and goes on reading it, once a second, until
// ctx ends; then it returns nil. If the file is bad at the start, Watch
// returns the error of [Load] at once.
//
// A file that goes bad later changes nothing: the last good configuration
// stays in force, and every mistake is logged with file, line and reason, once
// for each content. The content is compared, not the time, so a rename onto
// the file and a swapped symbolic link are seen. Replace the file in one of
// these ways: one that is written in place may be read half written.
func (c *Controller) Watch(ctx context.Context, path string) error {
	w := watched{c: c, path: path}
	if err := w.read(); err != nil {
		return err
	}
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := w.read(); err != nil {
				w.report(ctx, err)
			}
		}
	}
}

// watched is a file and what was last seen in it.
type watched struct {
	c    *Controller
	path string
	seen [sha256.Size]byte
}

// read applies the file if it is not what it was. A file that cannot be read
// counts as a content of its own, so that it is reported once.
func (w *watched) read() error {
	data, err := os.ReadFile(w.path)
	content := data
	if err != nil {
		content = []byte("unreadable: " + err.Error())
	}
	sum := sha256.Sum256(content)
	if sum == w.seen {
		return nil
	}
	w.seen = sum
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := Parse(w.path, data)
	if err != nil {
		return err
	}
	if err := w.c.Set(cfg); err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	w.c.log.Info("configuration applied", slog.String("file", w.path), slog.Int("destinations", len(cfg.Destinations)))
	return nil
}

// report logs every mistake by itself, so that each line of the log has the
// line of one.
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

// fileErrors takes a joined error apart.
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
