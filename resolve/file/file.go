package file

import (
	"context"
	"fmt"
	"iter"

	"github.com/gotower/gotower/internal/follow"
	"github.com/gotower/gotower/resolve"
)

// Resolver answers from a file. It is safe for concurrent use, and must not be
// copied. It holds nothing that has to be closed: its one goroutine, which looks
// at the file, runs only while there are streams. Between them it keeps nothing
// but the last content.
type Resolver struct{ poller *follow.Poller[state] }

type (
	targets = map[string][]resolve.Endpoint
	content = follow.Content[targets]
	state   = follow.Seen[targets]
)

var _ resolve.Resolver = (*Resolver)(nil)

// New returns a Resolver that reads the file at path; a relative path is taken
// from the directory the process is in at each look. The file is not touched
// before Resolve is called. To refuse a bad file at the start of a program,
// call [Parse] on its content first. An empty path panics.
func New(path string, opts ...Option) *Resolver {
	if path == "" {
		panic("file: New: the path is empty")
	}
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	o = o.orDefault()
	return &Resolver{follow.NewPoller(o.every, (&follow.File[targets]{Path: path, Max: o.max, Parse: Parse}).Look)}
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
		v := view{target: target}
		for range r.poller.States(ctx) {
			for ctx.Err() == nil {
				u, news, err := v.next(r.poller.Latest())
				if !news {
					break
				}
				if !yield(u, err) {
					return
				}
			}
		}
	}
}
