package k8s

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/resolve"
)

// Option changes what New returns.
type Option interface{ apply(to *options) }

type options struct {
	namespace string
	domain    string
	prefer    corev1.IPFamily // "" means the Service's first
	zone      string
	backoff   resolve.Backoff
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
	if o.domain == "" {
		o.domain = "cluster.local"
	}
	if o.backoff == (resolve.Backoff{}) {
		o.backoff = resolve.Backoff{Min: 800 * time.Millisecond, Max: 30 * time.Second, Jitter: 1}
	}
	o.backoff = o.backoff.OrDefault()
	return o
}

// WithNamespace sets the namespace of targets that name none, such as "web:80". The
// default, and "", is to reject those. A name that cannot be a namespace panics.
func WithNamespace(name string) Option {
	if why := notLabel(name); name != "" && why != "" {
		panic(fmt.Sprintf("k8s: WithNamespace: %q %s", name, why))
	}
	return option(func(o *options) { o.namespace = name })
}

// WithClusterDomain sets what may stand after "name.namespace.svc". The default, and
// "", is "cluster.local".
func WithClusterDomain(domain string) Option {
	return option(func(o *options) { o.domain = strings.ToLower(strings.Trim(domain, ".")) })
}

// WithPreferIPv4 takes the IPv4 addresses of a Service that has both, whichever its
// first family is. The last of WithPreferIPv4 and [WithPreferIPv6] counts.
func WithPreferIPv4() Option {
	return option(func(o *options) { o.prefer = corev1.IPv4Protocol })
}

// WithPreferIPv6 takes the IPv6 addresses of a Service that has both, whichever its
// first family is.
func WithPreferIPv6() Option {
	return option(func(o *options) { o.prefer = corev1.IPv6Protocol })
}

// WithZone names the zone that the caller is in, as the nodes' label
// topology.kubernetes.io/zone has it, and makes the resolver follow the hints of
// topology aware routing; see the package's documentation. The default, and "",
// is to pass the hints over.
func WithZone(own string) Option {
	return option(func(o *options) { o.zone = own })
}

// WithBackoff sets how long to wait before a list or a watch that failed is tried
// again. The zero value, the default, means what client-go has: 800 ms, doubled
// each time up to 30 s, and up to as much again at random. Otherwise a field that is
// 0 has the default of [resolve.Backoff], and one that is out of range panics. After
// a watch that the API server ends because it is overloaded, Jitter is added to Max.
func WithBackoff(b resolve.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("k8s: " + err.Error())
	}
	return option(func(o *options) { o.backoff = b })
}
