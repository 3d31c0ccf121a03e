package profiles

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/layer"
)

// watched is what became of the watch, for those who ask.
type watched struct {
	profiles int   // that came
	err      error // the newest news, nil after a profile
	ended    bool
}

// watch takes over the profiles that come until the source ends or says that
// there will be none. No error takes a profile away: the last one stays.
func (r *Router[Req, Rsp]) watch(ctx context.Context) {
	if r.initialWait > 0 {
		timer := time.AfterFunc(r.initialWait, func() { _ = panics.Contain(r.settle) })
		defer timer.Stop()
	}
	defer close(r.over)
	defer r.settle()
	var w watched
	out := outage{log: r.log.With("target", r.target)}
	err := panics.Do("the source", func() error {
		for p, err := range r.source.Watch(ctx, r.target) {
			w.err = err
			if err == nil {
				w.profiles++
				out.end(ctx)
				r.replace(p)
			} else {
				out.add(ctx, err)
			}
			r.watched.Store(new(w))
			if errors.Is(err, ErrNoProfile) {
				break
			}
		}
		return nil
	})
	if err != nil {
		w.err = err
		out.add(ctx, err)
	}
	w.ended = true
	r.watched.Store(new(w))
}

// outage is the time without news of the profile. An operator gets two lines
// of it, however long it is; the rest is for those who debug.
type outage struct {
	log      *slog.Logger
	failures int
	brought  bool // there was a profile on the stream that is read now
}

func (o *outage) add(ctx context.Context, err error) {
	routine := o.brought || o.failures > 0 || errors.Is(err, stream.ErrLimit)
	o.brought = false
	switch {
	case errors.Is(err, ErrNoProfile):
		level := slog.LevelDebug // most addresses have none
		if o.failures > 0 {
			level = slog.LevelInfo // the outage is over
		}
		o.log.Log(ctx, level, "there is no profile", "err", err)
	case errors.Is(err, stream.ErrEnded) && routine:
		o.log.DebugContext(ctx, "profile stream ended", "err", err)
	case o.failures > 0:
		o.failures++
		o.log.DebugContext(ctx, "profile stream failed again", "err", err, "failures", o.failures)
	default:
		o.failures = 1
		o.log.WarnContext(ctx, "profile stream failed; the last profile stays in force", "err", err)
	}
}

func (o *outage) end(ctx context.Context) {
	if o.failures > 0 {
		o.log.InfoContext(ctx, "profile stream is back", "failures", o.failures)
		o.failures = 0
	}
	o.brought = true
}

// settle ends the wait for the first profile: the default one serves.
func (r *Router[Req, Rsp]) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current.Load().provisional {
		r.swap(&Profile{})
	}
}

// replace puts p in force. A source that yields nil has the default profile.
func (r *Router[Req, Rsp]) replace(p *Profile) {
	if p == nil {
		p = &Profile{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.swap(p)
	r.log.Debug("profile", "target", r.target, "name", p.Name, "routes", len(p.Routes), "targets", len(p.Targets))
}

// swap is called with mu held.
func (r *Router[Req, Rsp]) swap(p *Profile) {
	old := r.current.Load()
	s := r.compile(p, old)
	s.budget = r.account(p)
	r.keepFaults(p)
	r.current.Store(s)
	close(old.replaced)
}

// Source watches the profiles of destinations.
//
// The sequence goes on until ctx ends or the consumer breaks; then it has
// released all it held. Each profile replaces the one before it as a whole.
// An error is news, not the end: the last profile stays in force, and the
// source goes on trying. The one exception is an error that matches
// [ErrNoProfile], which is the last item.
//
// A Source is safe for concurrent use; each call of Watch is its own stream.
type Source interface {
	Watch(ctx context.Context, target string) iter.Seq2[*Profile, error]
}

// ErrNoProfile says that a source will never have a profile for a target: it
// is not a name that the source knows anything of.
var ErrNoProfile = errors.New("no profile for this name")

// Ready waits until one of the profile's targets is ready. It cannot know the
// route of the next request, so it says nothing of per-route stacks. It
// returns an error that matches [layer.ErrClosed] when every target does and no
// other profile will come.
func (r *Router[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		s := r.current.Load()
		if err := s.poll(); err == nil || errors.Is(err, layer.ErrClosed) && r.isOver() {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.ready(ctx, r.over); !errors.Is(err, errReplaced) {
			return err
		}
	}
}

// errReplaced tells Ready to look at the profile that is in force by now.
var errReplaced = errors.New("profile replaced")

// poll returns nil if a part is ready, an error that matches ErrClosed if all
// are closed, and another one otherwise.
func (s *snapshot[Req, Rsp]) poll() error {
	answer := layer.ErrNotReady // without parts: the profile is still waited for
	for i := range s.split.parts {
		err := layer.Poll(s.split.parts[i].svc)
		if err == nil {
			return nil
		}
		if i == 0 || !errors.Is(err, layer.ErrClosed) {
			answer = err
		}
	}
	return answer
}

// ready waits until a part is ready, all are closed for good, which they are once
// it is over, ctx is done or the profile is replaced. A goroutine waits for each
// part; all have ended when ready returns.
func (s *snapshot[Req, Rsp]) ready(ctx context.Context, over <-chan struct{}) error {
	waiting, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	parts := s.split.parts
	answers := make(chan error, len(parts))
	for i := range parts {
		group.Go(func() {
			answers <- panics.Do("Ready", func() error { return parts[i].svc.Ready(waiting) })
		})
	}
	var closed error
	var end <-chan struct{} // over, once all are closed
	for left := len(parts); ; {
		select {
		case err := <-answers:
			if !errors.Is(err, layer.ErrClosed) {
				return err
			}
			if left--; left == 0 {
				closed, end = err, over
			}
		case <-end:
			return closed
		case <-s.replaced:
			return errReplaced
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Static is a Source that has what it was given: for tests, and for programs
// that have their profiles from somewhere else. The zero Static is ready to
// use: it has the default profile for every target.
type Static struct {
	mu       sync.Mutex
	profiles map[string]*Profile
	changed  notify.Broadcast
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
