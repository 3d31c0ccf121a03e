package outbound

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/gotower/gotower/profiles"
)

// sharedProfile is a source of profiles that allows two routers to use one watch of a
// target. The first router watches the sharedProfile itself. The second router watches a
// [replay] of it.
type sharedProfile struct {
	profiles.Source

	mu      sync.Mutex
	last    *profiles.Profile
	final   error         // [profiles.ErrNoProfile] if no further profile follows; else nil
	changed chan struct{} // closed and replaced when last or final changes
}

// share returns a sharedProfile that watches s.
func share(s profiles.Source) *sharedProfile {
	return &sharedProfile{Source: s, changed: make(chan struct{})}
}

// Watch yields the profiles of the source and records them for each [replay]. A replay
// yields no new profile after Watch has ended.
func (s *sharedProfile) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		for p, err := range s.Source.Watch(ctx, target) {
			s.record(p, err)
			if !yield(p, err) {
				return
			}
		}
	}
}

// record stores the profile p if err is nil. It stores err if err reports that the target
// has no profile. It ignores other errors, because they mean an outage, during which the
// last profile stays active.
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
	close(s.changed)
	s.changed = make(chan struct{})
}

// replay is a source of the profiles that a sharedProfile has recorded. It does not watch
// the destination controller itself.
type replay struct{ *sharedProfile }

func (r replay) Watch(ctx context.Context, _ string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		var seen *profiles.Profile
		for {
			r.mu.Lock()
			last, final, changed := r.last, r.final, r.changed
			r.mu.Unlock()
			if last != seen && !yield(ofConnections(last), nil) {
				return
			}
			if seen = last; final != nil {
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

// ofConnections returns the profile for connections that are not HTTP. This is
// p.Policy.Connections, or p itself if p has no policy or if the policy has no such
// profile.
func ofConnections(p *profiles.Profile) *profiles.Profile {
	if p.Policy != nil && p.Policy.Connections != nil {
		return p.Policy.Connections
	}
	return p
}
