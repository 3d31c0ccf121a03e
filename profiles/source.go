package profiles

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/freshstack"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/layer"
)

// Source watches the profiles for destinations.
//
// The sequence that Watch returns ends when ctx ends or the consumer breaks. By then the Source
// has released everything that belongs to the watch. Each profile replaces the previous one
// completely. After an error, the last profile stays current and the Source tries again. After an
// error that matches [ErrNoProfile], the sequence ends.
//
// A Source is safe for concurrent use. Each call of Watch is a separate stream.
type Source interface {
	Watch(ctx context.Context, target string) iter.Seq2[*Profile, error]
}

// ErrNoProfile means that a source will never provide a profile for a target, because it does not
// support such names.
var ErrNoProfile = errors.New("no profile for this name")

// Static is a Source whose profiles your program sets. The zero Static is ready to use: every
// target gets the default profile.
type Static struct {
	mu       sync.Mutex
	profiles map[string]*Profile
	changed  notify.Broadcast
}

// Set sets target's profile. p must not be modified afterwards. The sequences of Watch for target
// yield p. A nil p means the default profile.
func (s *Static) Set(target string, p *Profile) {
	s.mu.Lock()
	if s.profiles == nil {
		s.profiles = make(map[string]*Profile)
	}
	if p == nil {
		p = &Profile{} // a new pointer, because watchers compare pointers
	}
	s.profiles[target] = p
	s.mu.Unlock()
	s.changed.Wake()
}

// Watch yields the profile of target, and again after each Set. If the consumer is slow, it
// receives the last profile, but may miss profiles before that.
func (s *Static) Watch(ctx context.Context, target string) iter.Seq2[*Profile, error] {
	return func(yield func(*Profile, error) bool) {
		// A nil entry means that nothing was set, which stands for the default profile.
		entry := s.get(target)
		first := entry
		if first == nil {
			first = &Profile{}
		}
		for p := first; ctx.Err() == nil; p = entry {
			if !yield(p, nil) {
				return
			}
			// Pointers are compared: each Set stores another one.
			if s.changed.Wait(ctx, func() bool { return s.get(target) != entry }) != nil {
				return
			}
			entry = s.get(target)
		}
	}
}

// get returns the profile that was set for target, or nil.
func (s *Static) get(target string) *Profile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.profiles[target]
}

// watchState counts the profiles that a Router has received from its Source, and keeps the last
// error. The Router's Describe shows it.
type watchState struct {
	profiles int   // number of profiles received
	err      error // the last error; nil after a profile was received
	ended    bool  // whether the sequence of the Source has ended
}

// String returns the state as Describe shows it.
func (w *watchState) String() string {
	switch {
	case w.err != nil && w.ended:
		return "ended: " + w.err.Error()
	case w.ended:
		return "ended"
	case w.err != nil:
		return "lost: " + w.err.Error()
	case w.profiles == 0:
		return "waiting"
	}
	return "watching"
}

// follow applies each profile from the Source. It returns when the Source's sequence ends or
// yields ErrNoProfile.
func (r *Router[Req, Rsp]) follow(ctx context.Context) {
	// Requests must not wait longer for the first profile, even if the source is silent.
	if r.config.InitialWait > 0 {
		timer := time.AfterFunc(r.config.InitialWait, func() { _ = panics.Contain(r.endInitialWait) })
		defer timer.Stop()
	}
	// If no profile has arrived, the default one becomes current before done tells waiting requests that
	// none follows.
	defer close(r.done)
	defer r.endInitialWait()
	var w watchState
	// Outage logs the first error of an outage, and when it is over.
	log := r.config.Log.With("target", r.target)
	out := stream.Outage{Log: log, Name: "profile stream", Kept: "the last profile stays current"}
	err := panics.Do("the source", func() error {
		for p, err := range r.config.Source.Watch(ctx, r.target) {
			w.err = err
			switch {
			case err == nil:
				w.profiles++
				out.Received(ctx)
				freshstack.Call(func() { r.replace(p) }) // keeps the stack of this goroutine small, which then waits
			case errors.Is(err, ErrNoProfile):
				log.DebugContext(ctx, "no profile", "err", err) // most addresses have none
			default:
				out.Failed(ctx, err)
			}
			r.watch.Store(new(w)) // a copy, because Describe reads it while w changes
			// The source will never have a profile, so there is nothing to wait for.
			if errors.Is(err, ErrNoProfile) {
				break
			}
		}
		return nil
	})
	if err != nil {
		w.err = err
		out.Failed(ctx, err)
	}
	w.ended = true
	r.watch.Store(new(w))
}

// endInitialWait ends the requests' wait for the first profile. If the first profile has not
// arrived, it makes the default profile current.
func (r *Router[Req, Rsp]) endInitialWait() {
	r.mu.Lock()
	defer r.mu.Unlock()
	// A profile has arrived, unless the snapshot is still the first one.
	if r.current.Load().provisional {
		r.swap(&Profile{})
	}
}

// replace makes p the current profile. A nil p means the default profile.
func (r *Router[Req, Rsp]) replace(p *Profile) {
	if p == nil {
		p = &Profile{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.swap(p)
	r.config.Log.Debug("profile", "target", r.target, "name", p.Name, "routes", len(p.Routes), "targets", len(p.Targets))
}

// swap compiles p and makes the result the current snapshot. The caller must hold mu.
func (r *Router[Req, Rsp]) swap(p *Profile) {
	old := r.current.Load()
	services := r.backendServices
	r.current.Store(r.compile(p, old))
	// Wakes requests and Ready, which wait for another snapshot.
	close(old.replaced)
	// New requests no longer go to backends that p does not contain.
	for key, b := range services {
		if _, ok := r.backendServices[key]; !ok {
			b.end()
		}
	}
}

// errReplaced is what a snapshot's ready returns if another profile, with its own snapshot, has
// become current.
var errReplaced = errors.New("profile replaced")

// poll returns nil if a target in the split is ready now. Otherwise it returns an error without
// waiting, which matches ErrClosed only if the errors of all targets do.
func (s *snapshot[Req, Rsp]) poll() error {
	result := layer.ErrNotReady // without targets, while the first profile has not arrived
	for i := range s.split.parts {
		err := layer.Poll(s.split.parts[i].svc)
		if err == nil {
			return nil
		}
		// One target that is not closed may become ready later.
		if i == 0 || !errors.Is(err, layer.ErrClosed) {
			result = err
		}
	}
	return result
}

// ready calls Ready on all targets in the split, each on a new goroutine. It returns the first
// result that does not match ErrClosed. If all results match ErrClosed, it waits until done is
// closed, because another profile may arrive until then. It then returns the last result. When
// another snapshot becomes current, it returns errReplaced. When ctx ends, it returns ctx's cause.
// ready waits for all of its goroutines before it returns.
func (s *snapshot[Req, Rsp]) ready(ctx context.Context, done <-chan struct{}) error {
	// waiting ends all calls of Ready when one of them has decided.
	waiting, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	parts := s.split.parts
	// The buffer lets each goroutine end, although only the first results are read.
	results := make(chan error, len(parts))
	for i := range parts {
		group.Go(func() {
			results <- panics.Do("Ready", func() error { return parts[i].svc.Ready(waiting) })
		})
	}
	var closed error
	var end <-chan struct{} // set to done when all targets are closed
	for remaining := len(parts); ; {
		// end is nil, and blocks, until all targets are closed.
		select {
		case err := <-results:
			if !errors.Is(err, layer.ErrClosed) {
				return err
			}
			// All targets are closed, but another profile may have others, until done says that none follows.
			if remaining--; remaining == 0 {
				closed, end = err, done
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
