package file

import "log/slog"

// Option configures the Source of [New].
type Option interface{ apply(*options) }

type options struct {
	log *slog.Logger
}

type option func(*options)

func (o option) apply(to *options) { o(to) }

// WithLogger sets the logger. After each change of the file, the Source logs the parts of
// ServiceProfiles that it leaves out. With nil, the default, nothing is logged.
func WithLogger(l *slog.Logger) Option {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return option(func(o *options) { o.log = l })
}
