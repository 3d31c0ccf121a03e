package outbound

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/gotower/gotower/profiles"
)

// sharedProfile allows two routers to use one watch of a target's profile. The first
// router watches sharedProfile, the second watches replay.
type sharedProfile struct {
	profiles.Source

	mu      sync.Mutex
	last    *profiles.Profile
	final   error // ErrNoProfile: no profile follows
	changed chan struct{}
}

func share(s profiles.Source) *sharedProfile {
	return &sharedProfile{Source: s, changed: make(chan struct{})}
}

// Watch watches the source. It must run as long as the watches of replay.
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

// record stores a profile, or the error that there is no profile. Other errors are
// outages, which do not change the profile.
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

// replay yields the profiles that sharedProfile records.
type replay struct{ *sharedProfile }

func (r replay) Watch(ctx context.Context, _ string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		var seen *profiles.Profile
		for {
			r.mu.Lock()
			last, final, changed := r.last, r.final, r.changed
			r.mu.Unlock()
			if last != seen && !yield(last, nil) {
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
