package k8s

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

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

// Namespace sets the namespace of targets that name none, such as "web:80". The
// default, and "", is to refuse those.
func Namespace(name string) Option {
	return option(func(o *options) { o.namespace = name })
}

// ClusterDomain sets what may stand after "name.namespace.svc". The default, and
// "", is "cluster.local".
func ClusterDomain(domain string) Option {
	return option(func(o *options) { o.domain = strings.ToLower(strings.Trim(domain, ".")) })
}

// PreferIPv4 takes the IPv4 addresses of a Service that has both, whichever its
// first family is. The last of PreferIPv4 and [PreferIPv6] counts.
func PreferIPv4() Option {
	return option(func(o *options) { o.prefer = corev1.IPv4Protocol })
}

// PreferIPv6 takes the IPv6 addresses of a Service that has both, whichever its
// first family is.
func PreferIPv6() Option {
	return option(func(o *options) { o.prefer = corev1.IPv6Protocol })
}

// Zone names the zone that the caller is in, as the nodes' label
// topology.kubernetes.io/zone has it, and makes the resolver follow the hints of
// topology aware routing; see the package's documentation. The default, and "",
// is to pass the hints over.
func Zone(own string) Option {
	return option(func(o *options) { o.zone = own })
}

// Backoff sets how long to wait before a list or a watch that failed is tried
// again. The zero value, the default, means what client-go has: 800 ms, doubled
// each time up to 30 s, and up to as much again at random. What is not valid is
// made so, as [resolve.Reconnect] says; but after a watch that the API server
// ends because it is overloaded, Jitter comes on top of Max.
func Backoff(b resolve.Backoff) Option {
	return option(func(o *options) { o.backoff = b })
}
