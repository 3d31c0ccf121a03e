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

// Load serves what a file says, and returns it. The error joins a [*FileError]
// for every mistake in the file, or says why it cannot be read.
//
// After that watch, which is to be called once, goes on reading the file, once a
// second, until its ctx ends. A file that goes bad then changes nothing: the last
// good configuration stays in force, and every mistake is logged with file, line
// and reason, once for each content. The content is compared, not the time, so a
// rename onto the file and a swapped symbolic link are seen. Replace the file in
// one of these ways: one that is written in place may be read half written. What
// is no regular file, such as a pipe, has said all it has to say.
func (c *Controller) Load(path string) (cfg Config, watch func(ctx context.Context), err error) {
	w := &watched{c: c, path: path}
	if cfg, err = w.read(); err != nil {
		return Config{}, nil, err
	}
	return cfg, w.watch, nil
}

// watched is a file and what was last seen in it.
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
	ticker := time.NewTicker(pollEvery)
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

// read applies the file if it is not what it was, and returns what it says then. A
// file that cannot be read counts as a content of its own, so that it is reported
// once.
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
