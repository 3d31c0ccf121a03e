package profiles

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/gotower/gotower/internal/stream"
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
		timer := time.AfterFunc(r.initialWait, r.settle)
		defer timer.Stop()
	}
	defer close(r.over)
	defer r.settle()
	var w watched
	out := outage{log: r.log.With("target", r.target)}
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
