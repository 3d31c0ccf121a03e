package file

import "log/slog"

// Option configures the Source of [New].
type Option func(*options)

// options holds the settings of a Source.
type options struct {
	log *slog.Logger
}

// WithLogger sets the logger. After each change of the file, the Source logs the parts of
// ServiceProfiles that it leaves out. With nil, the default, nothing is logged.
func WithLogger(l *slog.Logger) Option {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return func(o *options) { o.log = l }
}
