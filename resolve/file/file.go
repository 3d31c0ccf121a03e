package file

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/gotower/gotower/resolve"
)

// Resolver answers from a file. It is safe for concurrent use, and must not be
// copied. It holds nothing that has to be closed: its one goroutine, which looks
// at the file, runs only while there are streams. Between them it keeps nothing
// but the last content.
type Resolver struct {
	every time.Duration
	file  source // the polling goroutine's

	mu      sync.Mutex
	streams int
	polling bool          // the goroutine runs, or is about to end and looks at streams before
	idle    chan struct{} // tells the goroutine that the last stream has left
	state   *state        // never nil while there are streams
	good    *content      // the last good one, kept while there are none
}

var _ resolve.Resolver = (*Resolver)(nil)

// New returns a Resolver that reads the file at path; a relative path is taken
// from the directory the process is in at each look. The file is not touched
// before Resolve is called. To refuse a bad file at the start of a program,
// call [Parse] on its content first.
func New(path string, opts ...Option) *Resolver {
	var o options
	for _, opt := range opts {
		opt.apply(&o)
	}
	o = o.orDefault()
	return &Resolver{every: o.every, file: source{path: path, max: o.max}}
}

// Resolve yields what the file says of target, whole, and again after each
// change of that, until ctx ends or the consumer breaks. A target that is not in
// the file does not exist, and may come to.
//
// A file that cannot be read or has mistakes is an error, yielded once for as
// long as it stays the same; what was known, be it from an earlier stream,
// stays in force. Once the file is good again, an update says so, even if it
// changes nothing. The mistakes in a file are each an [*Error] in it.
//
// A consumer that is slower than the changes is not told of those that are
// over. A name that no file can have, empty or with white space or control
// characters in it, is final: [resolve.ErrUnresolvable].
func (r *Resolver) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		if ctx.Err() != nil {
			return
		}
		if err := checkName(target); err != nil {
			yield(resolve.Update{}, fmt.Errorf("file: target %q: %w: %w", target, resolve.ErrUnresolvable, err))
			return
		}
		r.enter()
		defer r.leave()
		v := view{target: target}
		for ctx.Err() == nil {
			s := r.now()
			if u, news, err := v.next(s); news {
				if !yield(u, err) {
					return
				}
				continue
			}
			select {
			case <-s.over:
			case <-ctx.Done():
			}
		}
	}
}

// enter counts a stream, and starts the polling if it is the first one. What an
// earlier poll saw may be long out of date, so the streams wait for a look.
func (r *Resolver) enter() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams++
	if r.polling {
		return
	}
	r.polling = true
	r.idle = make(chan struct{}, 1)
	r.state = &state{over: make(chan struct{})}
	go r.poll(r.idle)
}

// leave does not wait for the goroutine: a file system that hangs must not hold
// up who leaves.
func (r *Resolver) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams--
	if r.streams > 0 {
		return
	}
	select {
	case r.idle <- struct{}{}:
	default: // the goroutine has not taken the last one yet
	}
}

func (r *Resolver) now() *state {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}
