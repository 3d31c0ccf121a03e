package linkerd

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/layer"
)

// Option configures the Source of [New].
type Option interface {
	apply(o *options)
}

type options struct {
	limited      bool // by suffixes and networks
	suffixes     []string
	networks     []netip.Prefix
	contextToken string
	backoff      layer.Backoff
	limits       stream.Limits
	log          *slog.Logger
}

type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// WithSuffixes limits the requested targets to names below one of the suffixes, such
// as "svc.cluster.local.", in addition to [WithNetworks]. "." means all names. Whole
// labels are compared, without regard to case or a final dot. An empty suffix matches
// no name. linkerd's proxy reads the suffixes from
// LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES.
//
// Any other target has [profiles.ErrNoProfile] at once, without a call. Without
// WithSuffixes and WithNetworks all targets are requested.
func WithSuffixes(suffixes ...string) Option {
	return optionFunc(func(o *options) {
		o.limited = true
		for _, s := range suffixes {
			if s = strings.TrimSpace(s); s != "" {
				o.suffixes = append(o.suffixes, plainName(s))
			}
		}
	})
}

// WithNetworks limits the requested targets to addresses in one of the networks, in
// addition to [WithSuffixes]. An IPv6 network contains no IPv4 address. An invalid
// network panics.
func WithNetworks(networks ...netip.Prefix) Option {
	for i, n := range networks {
		if !n.IsValid() {
			panic(fmt.Sprintf("linkerd: WithNetworks: network %d of %d is not valid", i+1, len(networks)))
		}
	}
	return optionFunc(func(o *options) {
		o.limited = true
		o.networks = append(o.networks, networks...)
	})
}

// requests reports whether the controller is asked for target.
func (o *options) requests(target string) bool {
	if !o.limited {
		return true
	}
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		host = target
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap().WithZone("")
		return slices.ContainsFunc(o.networks, func(n netip.Prefix) bool { return n.Contains(addr) })
	}
	name := plainName(host)
	return slices.ContainsFunc(o.suffixes, func(s string) bool { return s == "" || name == s || strings.HasSuffix(name, "."+s) })
}

func plainName(s string) string { return strings.ToLower(strings.TrimSuffix(s, ".")) }

// WithContextToken sets the context token of each request, by which the controller
// knows the client, such as {"ns":"default","nodeName":"n1"}. The default is none.
func WithContextToken(token string) Option {
	return optionFunc(func(o *options) { o.contextToken = token })
}

// WithBackoff sets the wait before GetProfile is called again. It starts from Min
// again after a stream that had a message and lasted 10 s, or Max if that is less.
// The default is [layer.DefaultBackoff], as in linkerd. Zero fields have their
// defaults. Invalid values panic.
func WithBackoff(b layer.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("linkerd: " + err.Error())
	}
	return optionFunc(func(o *options) { o.backoff = b })
}

// Limits are the time limits of each stream, see [WithStreamLimits]. The zero value
// means the limits that linkerd's chart sets for its proxies: 3 s, 5 min and 1 h. A
// negative field means no limit. Time in which the consumer does not read counts for
// Lifetime only.
type Limits struct {
	// Initial limits the time to the first message, connecting included. A stream
	// that exceeds it fails with the code DeadlineExceeded. 0 means 3 s.
	Initial time.Duration

	// Idle limits the time to each later message, and Lifetime the whole stream. A
	// stream that exceeds one of them is reopened and brings the profile again; the
	// last profile stays current. Up to a tenth is added at random, so that the
	// streams of many clients do not end at once. 0 means 5 min and 1 h; the
	// smallest value is 10 s.
	Idle     time.Duration
	Lifetime time.Duration
}

// WithStreamLimits sets the time limits of each stream. The default is the zero
// [Limits]. The limits find a controller that does not answer. Lifetime also bounds
// the effect of a lost message.
func WithStreamLimits(l Limits) Option {
	return optionFunc(func(o *options) { o.limits = stream.Limits(l).OrDefault() })
}

// errNoAnswer ends a stream that exceeded Limits.Initial.
var errNoAnswer = status.Error(codes.DeadlineExceeded, "the controller does not answer")

// WithLogger logs to l the parts that are left out of profiles. Each is logged once,
// until a message without it: at most ten of a message, and the number of the others.
// The default, and nil, logs nothing.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(o *options) { o.log = l })
}
