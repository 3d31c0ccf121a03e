package linkerd

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/profiles"
)

// policies is the Source of [NewPolicies].
type policies struct {
	options
	client   outbound.OutboundPoliciesClient
	workload string
}

// NewPolicies returns a Source that converts the outbound policies from the policy controller at
// conn to profiles. The Source calls OutboundPolicies.Watch. workload describes the client to the
// controller; linkerd's proxies send {"ns":"default","pod":"web-1"}. Targets and options are as in
// [New], but [WithContextToken] does nothing. There is no policy for a target if the controller
// returns NotFound, Unimplemented, InvalidArgument or FailedPrecondition. NewPolicies panics if
// conn is nil.
//
// An invalid part of a policy is left out, and an invalid backend fails its share of the requests.
// linkerd's proxy rejects the whole policy instead. Further differences from linkerd are:
//
//   - HTTP/2 routes also apply to HTTP/1, if a policy defines routes for both.
//   - A path prefix never takes precedence over the exact path.
//   - Failed connections are retried.
//   - The limits in [profiles.Retry] apply.
func NewPolicies(conn grpc.ClientConnInterface, workload string, opts ...Option) profiles.Source {
	if conn == nil {
		panic("linkerd: NewPolicies: the connection is nil; want a gRPC connection to a policy controller")
	}
	return &policies{client: outbound.NewOutboundPoliciesClient(conn), workload: workload, options: newOptions(opts)}
}

// Watch yields target's policy as a profile, and again after each change.
func (s *policies) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	if !s.requests(target) {
		return s.outside(target)
	}
	// The controller distinguishes names from addresses.
	spec := &outbound.TrafficSpec{SourceWorkload: s.workload, Target: &outbound.TrafficSpec_Authority{Authority: target}}
	if addr, err := netip.ParseAddrPort(target); err == nil {
		spec.Target = &outbound.TrafficSpec_Addr{Addr: wire.TCP(addr)}
	}
	return follow(ctx, &follower[*outbound.OutboundPolicy]{
		options: &s.options, name: "policy", target: target,
		final: []codes.Code{codes.NotFound, codes.Unimplemented, codes.InvalidArgument, codes.FailedPrecondition},
		open: func(ctx context.Context) (receiver[*outbound.OutboundPolicy], error) {
			return s.client.Watch(ctx, spec)
		},
		convert: convertPolicy,
	})
}

// Prefer returns a Source that combines a target's profile and policy. The profile is used if it
// sets a name and at least one route or target. Otherwise the policy is used, with the profile's
// name. OpaqueProtocol is true if either of them sets it. linkerd's proxy gives them the same
// precedence.
//
// The profile is also used if there is no policy for the target, or if the policy does not arrive
// within wait. After such a timeout, new watches use the profile at once. Once the policy
// controller answers again, new watches wait again. While the policy controller is down, the last
// policies stay current, and log gets a single warning.
func Prefer(profile, policy profiles.Source, wait time.Duration, log *slog.Logger) profiles.Source {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &preferred{profile: profile, policy: policy, wait: wait, log: log}
}

// preferred is the Source of [Prefer].
type preferred struct {
	profile, policy profiles.Source
	wait            time.Duration
	log             *slog.Logger

	silent atomic.Bool // the policy controller did not answer within wait; until it does, new watches do not wait for it
	warned atomic.Bool // the outage was logged, and its end will be
}

// item is one item from the sequence of the profile source or the policy source.
type item struct {
	profile *profiles.Profile
	err     error
	policy  bool // whether the item comes from the policy source
}

// Watch watches target in both sources, each on its own goroutine, and yields the profile that applies
// whenever it changes. It waits for both goroutines before the sequence ends.
func (s *preferred) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		// ctx ends both watches when the consumer breaks.
		ctx, cancel := context.WithCancel(ctx)
		var group sync.WaitGroup
		defer group.Wait()
		defer cancel()
		// Not buffered, so that a source waits until its item was handled.
		items := make(chan item)
		// watch sends the items of source to items; policy tells whether it is the policy source.
		watch := func(source profiles.Source, policy bool) {
			// send is the yield function of the source's sequence.
			send := func(p *profiles.Profile, err error) bool {
				select {
				case items <- item{p, err, policy}:
					return true
				case <-ctx.Done():
					return false
				}
			}
			group.Go(func() {
				// The sources are user code, so a panic in one becomes an error.
				if err := panics.Contain(func() { source.Watch(ctx, target)(send) }); err != nil {
					send(nil, fmt.Errorf("linkerd: watch %q: %w", target, err))
				}
			})
		}
		watch(s.profile, false)
		watch(s.policy, true)
		// After wait, whatever has arrived by then is used.
		timer := time.NewTimer(s.wait)
		defer timer.Stop()
		// If the controller is silent, new watches do not wait for it.
		m := merged{preferred: s, policy: side{settled: s.silent.Load()}}
		for {
			var p *profiles.Profile
			var err error
			select {
			case i := <-items:
				p, err = m.add(ctx, target, i)
			case <-timer.C:
				p = m.late(ctx, target)
			case <-ctx.Done():
				return
			}
			// The sequence ends if the consumer breaks, or with ErrNoProfile, after which neither source yields
			// anything. Any other error is an outage, after which the source tries again.
			if err != nil && !yield(nil, err) || errors.Is(err, profiles.ErrNoProfile) {
				return
			}
			if p != nil && !yield(p, nil) {
				return
			}
		}
	}
}

// merged holds what [Prefer]'s profile source and policy source returned, for a watch on one
// target.
type merged struct {
	*preferred
	profile, policy side
}

// side holds the state of one sequence, from the profile source or the policy source: its last
// profile, and the error that ended it.
type side struct {
	current *profiles.Profile // the last profile; nil if there was none
	settled bool              // whether the first item has arrived or is not awaited any more
	final   error             // the error after which no profile follows, or nil
}

// add records the item i, which is from the profile source or the policy source. It returns
// the profile or the error that the sequence must yield. It returns nil and nil if nothing
// must be yielded.
func (m *merged) add(ctx context.Context, target string, i item) (_ *profiles.Profile, err error) {
	// slot is the side to which the item belongs.
	slot := &m.profile
	if i.policy {
		slot = &m.policy
		m.report(ctx, target, i.err)
	}
	// To notice whether the item changes anything.
	previous := *slot
	switch slot.settled = true; {
	case i.err == nil:
		slot.current = i.profile
	case errors.Is(i.err, profiles.ErrNoProfile):
		slot.final = i.err // the source has no profile, and will not have one
	case !i.policy:
		err = i.err // an outage of the profile source, which the consumer logs; report logs that of the policy source
	}
	switch {
	// Neither source will ever yield a profile.
	case m.profile.final != nil && m.policy.final != nil && m.policy.current == nil:
		return nil, m.profile.final
	case previous.settled && previous.current == slot.current && (previous.final == nil) == (slot.final == nil):
		return nil, err // nothing has changed
	}
	return m.effective(), err
}

// late is called when [Prefer]'s wait is over. After that the watch no longer waits for a profile
// or a policy. late returns the profile to yield, or nil if nothing must be yielded, for example
// because both have arrived.
func (m *merged) late(ctx context.Context, target string) *profiles.Profile {
	if m.profile.settled && m.policy.settled {
		return nil
	}
	// Other watches need not wait as long for a controller that is down.
	if !m.policy.settled {
		m.silent.Store(true)
		m.warn(ctx, target, errNoAnswer)
	}
	m.profile.settled, m.policy.settled = true, true
	return m.effective()
}

// report logs when an outage of the policy controller begins and ends. err is the policy source's
// last error, or nil after a policy.
func (m *merged) report(ctx context.Context, target string, err error) {
	// The order matters: Unimplemented also means that there is no profile, but is a mistake of the configuration.
	switch {
	case err == nil:
		// A policy ends both: watches wait for the controller again, and its outage is over.
		m.silent.Store(false)
		if m.warned.Swap(false) {
			m.log.InfoContext(ctx, "the policy controller answers again", "target", target)
		}
	case isUnimplemented(err):
		m.warn(ctx, target, err)
	case errors.Is(err, profiles.ErrNoProfile):
		// The controller has answered that there is no policy, so new watches wait for it again. warned stays until a
		// policy arrives.
		m.silent.Store(false)
		m.log.DebugContext(ctx, "no policy", "target", target, "err", err)
	case errors.Is(err, stream.ErrEnded) && m.policy.current != nil:
		m.log.DebugContext(ctx, "policy stream ended", "target", target, "err", err)
	default:
		m.warn(ctx, target, err)
	}
}

// warn logs that there are no policies, once for each outage.
func (m *merged) warn(ctx context.Context, target string, err error) {
	if !m.warned.Swap(true) {
		m.log.WarnContext(ctx, "no policies from the policy controller; profiles and discovery are used", "target", target, "err", err)
	}
}

// effective returns the profile or the policy that applies to the target: see [Prefer]. It returns
// nil while the profile or the policy may still arrive.
func (m *merged) effective() *profiles.Profile {
	// One of them may still arrive within the wait.
	if !m.profile.settled || !m.policy.settled {
		return nil
	}
	profile, policy := m.profile.current, m.policy.current
	// The order is that in the comment of Prefer.
	switch {
	case profile == nil && policy == nil && m.profile.final == nil:
		return nil // the profile is awaited
	case profile == nil && policy == nil:
		return &profiles.Profile{}
	case policy == nil:
		return profile
	case profile == nil:
		return policy
	case profile.Name != "" && len(profile.Routes)+len(profile.Targets) > 0:
		return profile
	}
	// A copy, because the policy source may yield the same value again.
	p := *policy
	p.Name, p.OpaqueProtocol = profile.Name, policy.OpaqueProtocol || profile.OpaqueProtocol
	return &p
}

// isUnimplemented reports whether the controller has no policies at all.
func isUnimplemented(err error) bool {
	return status.Code(err) == codes.Unimplemented
}
