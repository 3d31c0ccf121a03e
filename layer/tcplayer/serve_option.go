package tcplayer

import (
	"log/slog"
	"time"

	"github.com/gotower/gotower/internal/lograte"
)

// ServeOption sets how [Serve] works.
type ServeOption interface{ applyServe(s *server) }

type serveOption func(*server)

func (f serveOption) applyServe(s *server) { f(s) }

// WithShutdownTimeout is how long connections that are open may go on once ctx has ended. The
// default is 2 min, as in linkerd's proxy; with a d of 0 or less they are broken
// off at once.
func WithShutdownTimeout(d time.Duration) ServeOption {
	return serveOption(func(s *server) { s.grace = max(d, 0) })
}

// WithLogger is where Serve says what went wrong: an Accept that failed at level Warn
// or, for good, Error; every 15 s that svc is not ready, at Warn; a panic of svc, with
// its stack, at Error; a connection that was refused or broken off at Debug. A message
// that repeats is written ten times in ten seconds at most, and then its count. The
// default, and nil, is nowhere.
func WithLogger(l *slog.Logger) ServeOption {
	return serveOption(func(s *server) { s.log = l })
}

const defaultGrace = 2 * time.Minute

func newServer(svc Server, opts []ServeOption) *server {
	s := &server{svc: svc, grace: defaultGrace}
	for _, opt := range opts {
		if opt != nil {
			opt.applyServe(s)
		}
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	} else {
		s.log = slog.New(lograte.New(s.log.Handler()))
	}
	return s
}
