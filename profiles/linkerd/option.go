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

// Option configures the Source that [New] or [NewPolicies] returns.
type Option func(*options)

// options holds the options of a Source.
type options struct {
	limited      bool // whether only targets in suffixes and networks are requested
	suffixes     []string
	networks     []netip.Prefix
	contextToken string
	backoff      layer.Backoff
	limits       stream.Limits
	log          *slog.Logger
}

// WithSuffixes requests profiles only for names below one of the suffixes, such as
// "svc.cluster.local.", and for targets that [WithNetworks] allows. "." allows all names. Whole
// labels are compared. Case and a final dot do not matter. An empty suffix allows no name.
// linkerd's proxy takes this setting from LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES.
//
// A stream for any other target yields [profiles.ErrNoProfile] at once, without a request.
// Without WithSuffixes and WithNetworks, the profiles of all targets are requested.
func WithSuffixes(suffixes ...string) Option {
	return func(o *options) {
		o.limited = true
		for _, s := range suffixes {
			if s = strings.TrimSpace(s); s != "" {
				o.suffixes = append(o.suffixes, plainName(s))
			}
		}
	}
}

// WithNetworks requests profiles only for addresses in one of the networks, and for targets that
// [WithSuffixes] allows. An IPv6 network contains no IPv4 address. An invalid network panics.
func WithNetworks(networks ...netip.Prefix) Option {
	// All networks are checked before any option is made.
	for i, n := range networks {
		if !n.IsValid() {
			panic(fmt.Sprintf("linkerd: WithNetworks: network %d of %d is not valid", i+1, len(networks)))
		}
	}
	return func(o *options) {
		o.limited = true
		o.networks = append(o.networks, networks...)
	}
}

// requests reports whether the Source asks the controller for the profile of target. It does
// if WithSuffixes or WithNetworks allows target, or if neither option is set.
func (o *options) requests(target string) bool {
	if !o.limited {
		return true
	}
	// A target without a port is a host alone.
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		host = target
	}
	// As an IPv4 address, if it is mapped.
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap().WithZone("")
		return slices.ContainsFunc(o.networks, func(n netip.Prefix) bool { return n.Contains(addr) })
	}
	name := plainName(host)
	// "" is the suffix ".", which allows every name. A suffix must begin at a label.
	return slices.ContainsFunc(o.suffixes, func(s string) bool { return s == "" || name == s || strings.HasSuffix(name, "."+s) })
}

// plainName returns s in lower case without a final dot.
func plainName(s string) string { return strings.ToLower(strings.TrimSuffix(s, ".")) }

// WithContextToken sets the context token of each request, such as
// {"ns":"default","nodeName":"n1"}. The token describes the client to the controller. By
// default no token is sent.
func WithContextToken(token string) Option {
	return func(o *options) { o.contextToken = token }
}

// WithBackoff sets how long to wait after a stream has ended before the next one starts. The wait
// grows from Min to Max while streams fail. A stream that received a message and lasted 10 s sets
// the wait to Min again. If Max is less than 10 s, such a stream need only last Max. The default
// is [layer.DefaultBackoff], as in linkerd. A Min or Max of 0 means its default. If one of the
// fields is set, a Jitter of 0 means no jitter. Invalid values panic.
func WithBackoff(b layer.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("linkerd: " + err.Error())
	}
	return func(o *options) { o.backoff = b }
}

// Limits are the time limits for each stream, see [WithStreamLimits]. A zero field means the value
// that linkerd's chart sets for its proxies, and a negative field means no limit. While the
// consumer handles a profile, Lifetime counts on, but Idle does not.
type Limits struct {
	// Initial limits the time to the first message, including the dial. A stream that takes longer
	// fails with the code DeadlineExceeded. 0 means 3 s.
	Initial time.Duration

	// Idle limits the time between messages; 0 means 5 min. Lifetime limits the duration of the
	// stream; 0 means 1 h. A positive value below 10 s counts as 10 s. A stream that exceeds a
	// limit is opened again and receives the profile again. The last profile stays current. Up to
	// 10 % is added at random, so that the streams of many clients end at different times.
	Idle     time.Duration
	Lifetime time.Duration
}

// WithStreamLimits sets the time limits of each stream. They detect a controller that does not
// answer. Lifetime also limits the time for which a profile is wrong after a lost message. The
// default is the zero [Limits].
func WithStreamLimits(l Limits) Option {
	return func(o *options) { o.limits = stream.Limits(l).OrDefault() }
}

// errNoAnswer is the error of a stream that exceeded Limits.Initial.
var errNoAnswer = status.Error(codes.DeadlineExceeded, "the controller does not answer")

// WithLogger sets the logger for what is left out of profiles. A part is logged once, and again
// only after a message without that part. For one message, at most ten parts are logged, and then
// how many remain. With nil, the default, nothing is logged.
func WithLogger(l *slog.Logger) Option {
	return func(o *options) { o.log = l }
}
