package kit

import (
	"context"
	"net/netip"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/resolve"
)

// Option changes what New returns.
type Option interface{ apply(to *options) }

type options struct {
	parse   func(string) (resolve.Endpoint, error)
	lookup  func(context.Context, string) ([]netip.Addr, error)
	backoff resolve.Backoff
}

type option func(*options)

func (o option) apply(to *options) { o(to) }

func newOptions(opts []Option) options {
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	o.backoff = o.backoff.OrDefault()
	return o
}

// WithParse sets how the text of an instance is read, for sources that say more
// than "host:port", or say it otherwise. It takes the place of [WithLookup] as
// well. Its address must have a port, and not be 0.0.0.0 or ::. It may be called by several streams at
// the same time. The default, and nil, is "10.0.0.1:80" or "[fd00::1]:80".
func WithParse(parse func(instance string) (resolve.Endpoint, error)) Option {
	return option(func(o *options) { o.parse = parse })
}

// WithLookup sets how a host name becomes addresses; all of them are endpoints, but
// for 0.0.0.0 and ::, by which filters of DNS say that a name is blocked. It
// is called for each name in each event. Where it failed for one, or found no
// address, it is called again for all of that event after the [WithBackoff]. Else it
// is not called between events: names whose addresses move need a resolver that
// follows them. It may be called by several streams at the same time, and must
// return when ctx ends. The default, and nil, takes a name for an error.
func WithLookup(lookup func(ctx context.Context, host string) ([]netip.Addr, error)) Option {
	return option(func(o *options) { o.lookup = lookup })
}

// WithBackoff sets how long to wait before an Instancer that could not be made is
// tried again, or a name that could not be looked up. The default is 100 ms to 60 s
// with a tenth of jitter. A field that is 0 has its default; one that is out of range
// panics.
func WithBackoff(b resolve.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("kit: " + err.Error())
	}
	return option(func(o *options) { o.backoff = b })
}
