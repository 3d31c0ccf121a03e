package outbound

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/gotower/gotower/profiles"
)

// told has a source asked once for the profile of one target, for two who want
// it: whoever watches told asks, and passes on what it hears to whoever watches
// again.
type told struct {
	profiles.Source

	mu      sync.Mutex
	last    *profiles.Profile
	none    error // there will be no more
	changed chan struct{}
}

func tell(s profiles.Source) *told { return &told{Source: s, changed: make(chan struct{})} }

// Watch is for the first one, who has to go on for as long as the others.
func (t *told) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		for p, err := range t.Source.Watch(ctx, target) {
			t.hear(p, err)
			if !yield(p, err) {
				return
			}
		}
	}
}

// hear takes a profile, or that there is none. The first one hears of outages:
// they change nothing for the others.
func (t *told) hear(p *profiles.Profile, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		t.last = p
	case errors.Is(err, profiles.ErrNoProfile):
		t.none = err
	default:
		return
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// again is the source of those who watch again.
type again struct{ *told }

func (a again) Watch(ctx context.Context, _ string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		var seen *profiles.Profile
		for {
			a.mu.Lock()
			last, none, changed := a.last, a.none, a.changed
			a.mu.Unlock()
			if last != seen && !yield(last, nil) {
				return
			}
			if seen = last; none != nil {
				yield(nil, none)
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
