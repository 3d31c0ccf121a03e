package resolve_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
)

var errReset = errors.New("connection reset")

// script is a resolver that yields the updates of the test, one by
// one. A stream ends when the test ends it. It begins with the whole set.
type script struct {
	mu      sync.Mutex
	targets map[string]*line
}

// line has the updates of one target.
type line struct {
	updates []resolve.Update // since the first set; all streams follow it
	streams int              // how many streams are open
	opened  int              // how many there were
	breaks  int              // how often streams were ended
	why     error            // they were
	broken  bool
	reject  bool
	changed chan struct{}
}

func (s *script) change(target string, how func(*line)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets == nil {
		s.targets = make(map[string]*line)
	}
	l := s.targets[target]
	if l == nil {
		l = &line{changed: make(chan struct{})}
		s.targets[target] = l
	}
	how(l)
	close(l.changed)
	l.changed = make(chan struct{})
}

func (s *script) send(target string, u resolve.Update) {
	s.change(target, func(l *line) { l.updates = append(l.updates, u) })
}

func (s *script) set(target string, endpoints ...resolve.Endpoint) {
	s.send(target, resolve.Update{Kind: resolve.Replace, Endpoints: endpoints})
}

// cut breaks the streams of a target; new ones break too until mend.
func (s *script) cut(target string) {
	s.change(target, func(l *line) { l.broken, l.why = true, errReset; l.breaks++ })
}

func (s *script) mend(target string) { s.change(target, func(l *line) { l.broken = false }) }

// open returns how many streams of the target there are, and were.
func (s *script) open(target string) (now, ever int) {
	s.change(target, func(l *line) { now, ever = l.streams, l.opened })
	return now, ever
}

func (s *script) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		var breaks, at int
		s.change(target, func(l *line) { breaks, l.streams, l.opened = l.breaks, l.streams+1, l.opened+1 })
		defer s.change(target, func(l *line) { l.streams-- })
		for first := true; ctx.Err() == nil; {
			s.mu.Lock()
			l := *s.targets[target]
			s.mu.Unlock()
			switch {
			case l.reject:
				yield(resolve.Update{}, fmt.Errorf("%s: %w", target, resolve.ErrUnresolvable))
				return
			case l.broken || l.breaks != breaks:
				yield(resolve.Update{}, l.why)
				return
			case at < len(l.updates):
				u := l.updates[at]
				at++
				if first {
					first, at = false, len(l.updates)
					u = sum(l.updates)
				}
				if !yield(u, nil) {
					return
				}
				continue
			}
			select {
			case <-l.changed:
			case <-ctx.Done():
			}
		}
	}
}

// sum is many updates as one.
func sum(updates []resolve.Update) resolve.Update {
	var all resolve.Set
	for _, u := range updates {
		all.Apply(u)
	}
	switch all.State() {
	case resolve.StateExists:
		return resolve.Update{Kind: resolve.Replace, Endpoints: all.Endpoints()}
	case resolve.StateDoesNotExist:
		return resolve.Update{Kind: resolve.DoesNotExist}
	}
	return resolve.Update{Kind: resolve.Empty}
}

// source is the script as resolvetest wants it.
func (s *script) source() resolvetest.Source {
	return resolvetest.Source{
		Set:          s.set,
		Empty:        func(target string) { s.send(target, resolve.Update{Kind: resolve.Empty}) },
		DoesNotExist: func(target string) { s.send(target, resolve.Update{Kind: resolve.DoesNotExist}) },
		Send:         s.send,
		Interrupt: func(target string, meanwhile func()) {
			s.cut(target)
			meanwhile()
			s.mend(target)
		},
		Reject: func(target string) { s.change(target, func(l *line) { l.reject = true }) },
	}
}

// lasting is the script with streams that are opened again.
func (s *script) lasting() resolve.Resolver {
	return resolve.Reconnect(s, resolve.Backoff{Min: time.Millisecond, Max: time.Millisecond})
}

// never resolves nothing.
func never(_ context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		yield(resolve.Update{}, fmt.Errorf("never %s: %w", target, resolve.ErrUnresolvable))
	}
}

func TestWrappersConform(t *testing.T) {
	none := resolve.Func(never)
	under := func(wrap func(testing.TB, resolve.Resolver) resolve.Resolver) resolvetest.Subject {
		return resolvetest.Subject{
			New: func(t testing.TB) (resolve.Resolver, resolvetest.Source) {
				var s script
				return wrap(t, s.lasting()), s.source()
			},
			Relabel: func(e resolve.Endpoint) resolve.Endpoint { e.Weight = 99; return e },
			Rekey:   func(e resolve.Endpoint) resolve.Endpoint { e.Protocol = resolve.H2; return e },
		}
	}
	for name, wrap := range map[string]func(testing.TB, resolve.Resolver) resolve.Resolver{
		"script": func(_ testing.TB, r resolve.Resolver) resolve.Resolver { return r },
		"merge":  func(_ testing.TB, r resolve.Resolver) resolve.Resolver { return resolve.Merge(none, r, none) },
		"first":  func(_ testing.TB, r resolve.Resolver) resolve.Resolver { return resolve.Fallback(r, none) },
		"second": func(_ testing.TB, r resolve.Resolver) resolve.Resolver { return resolve.Fallback(none, r) },
		"keep": func(_ testing.TB, r resolve.Resolver) resolve.Resolver {
			return resolve.ServeStale(r, resolve.StalePolicy{Grace: time.Millisecond})
		},
		"keep without grace": func(_ testing.TB, r resolve.Resolver) resolve.Resolver {
			return resolve.ServeStale(r, resolve.StalePolicy{Grace: -1})
		},
		"all of them": func(t testing.TB, r resolve.Resolver) resolve.Resolver {
			kept := resolve.ServeStale(resolve.Fallback(r, none), resolve.StalePolicy{Grace: time.Millisecond})
			return resolve.Merge(kept, none)
		},
	} {
		t.Run(name, func(t *testing.T) { resolvetest.Run(t, under(wrap)) })
	}
}
