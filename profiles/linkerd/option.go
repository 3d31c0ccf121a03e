package linkerd

import (
	"log/slog"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/layer"
)

// Option changes what [New] returns.
type Option interface {
	apply(o *options)
}

type options struct {
	gate
	contextToken string
	backoff      layer.Backoff
	limits       stream.Limits
	log          *slog.Logger
}

type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// WithContextToken sets the context token of each request: what tells the
// controller who asks, such as {"ns":"default","nodeName":"n1"}. It is opaque
// here. The default is none.
func WithContextToken(token string) Option {
	return optionFunc(func(o *options) { o.contextToken = token })
}

// WithBackoff sets how long to wait before GetProfile is called again. It starts from
// Min again once a stream brought a message and lasted 10 s, or as long as Max if
// that is less. The default is [layer.DefaultBackoff], linkerd's own. A field that is
// 0 has its default; one that is out of range panics.
func WithBackoff(b layer.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("linkerd: " + err.Error())
	}
	return optionFunc(func(o *options) { o.backoff = b })
}

// WithLogger has what is left out of profiles logged to l: each piece once, and not
// again while messages go on to have it, ten of a message at most and how many
// more there are. The default, and nil, is silence.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(o *options) { o.log = l })
}
