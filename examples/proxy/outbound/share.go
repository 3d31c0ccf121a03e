package outbound

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/gotower/gotower/profiles"
)

// sharedProfile is a source that allows two routers to share one watch of a target. One of them
// watches the sharedProfile itself, and the other one a [replay] of it.
type sharedProfile struct {
	profiles.Source

	mu      sync.Mutex
	last    *profiles.Profile
	final   error         // [profiles.ErrNoProfile] if no profile follows, otherwise nil
	changed chan struct{} // closed and replaced when last or final changes
}

// share returns a sharedProfile, which records the profiles of s for its replays.
func share(s profiles.Source) *sharedProfile {
	return &sharedProfile{Source: s, changed: make(chan struct{})}
}

// Watch yields the source's profiles and records them for each [replay]. After it has ended,
// replays yield no new profiles.
func (s *sharedProfile) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		// Each event is recorded before it is passed on, so replays are not behind.
		for p, err := range s.Source.Watch(ctx, target) {
			s.record(p, err)
			if !yield(p, err) {
				return
			}
		}
	}
}

// record stores p, or the error that the target has no profile. It ignores all other errors,
// because the last profile stays active during an outage.
func (s *sharedProfile) record(p *profiles.Profile, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.last = p
	case errors.Is(err, profiles.ErrNoProfile):
		s.final = err
	default:
		return
	}
	// Wake all replays that wait for a change.
	close(s.changed)
	s.changed = make(chan struct{})
}

// replay yields the profiles that a sharedProfile has recorded, without another watch of the
// destination controller.
type replay struct{ *sharedProfile }

// Watch yields the recorded profile, each later one, and at last the error with which the recording ended.
func (r replay) Watch(ctx context.Context, _ string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		// last is nil until the first profile is recorded, so nothing is yielded before.
		var previous *profiles.Profile
		for {
			// Copy the state under the lock, because yield may run for long.
			r.mu.Lock()
			last := r.last
			final := r.final
			changed := r.changed
			r.mu.Unlock()
			if last != previous && !yield(ofConnections(last), nil) {
				return
			}
			// After final, no profile follows, so the sequence ends.
			if previous = last; final != nil {
				yield(nil, final)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// ofConnections returns the profile for connections that do not speak HTTP: p.Policy.Connections if
// there is one, and otherwise p.
func ofConnections(p *profiles.Profile) *profiles.Profile {
	if p.Policy != nil && p.Policy.Connections != nil {
		return p.Policy.Connections
	}
	return p
}
