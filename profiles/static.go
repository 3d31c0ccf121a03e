package profiles

import (
	"context"
	"iter"
	"sync"

	"github.com/gotower/gotower/internal/wake"
)

// Static is a Source that has what it was given: for tests, and for programs
// that have their profiles from somewhere else. The zero Static is ready to
// use: it has the default profile for every target.
type Static struct {
	mu       sync.Mutex
	profiles map[string]*Profile
	changed  wake.Broadcast
}

// Set gives target a profile, which is not to be changed afterwards. Those who
// watch get it at once; nil takes the profile away, and they get the default
// one.
func (s *Static) Set(target string, p *Profile) {
	s.mu.Lock()
	if s.profiles == nil {
		s.profiles = make(map[string]*Profile)
	}
	// An entry for nil, too: a new pointer is how watchers see the change.
	if p == nil {
		p = &Profile{}
	}
	s.profiles[target] = p
	s.mu.Unlock()
	s.changed.Wake()
}

// Watch yields the profile of target, and again whenever it was set. A slow
// consumer misses those in between.
func (s *Static) Watch(ctx context.Context, target string) iter.Seq2[*Profile, error] {
	return func(yield func(*Profile, error) bool) {
		seen := s.get(target)
		first := seen
		if first == nil {
			first = &Profile{}
		}
		for p := first; ctx.Err() == nil; p = seen {
			if !yield(p, nil) {
				return
			}
			if s.changed.Wait(ctx, func() bool { return s.get(target) != seen }) != nil {
				return
			}
			seen = s.get(target)
		}
	}
}

func (s *Static) get(target string) *Profile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.profiles[target]
}
