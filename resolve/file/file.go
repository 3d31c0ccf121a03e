package file

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/gotower/gotower/internal/follow"
	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/resolve"
)

// Resolver resolves targets from a file. It is safe for concurrent use, need not be closed, and
// must not be copied. Its goroutine, which polls the file, runs only while there are streams.
type Resolver struct{ poller *follow.Poller[state] }

type (
	targets = map[string][]resolve.Endpoint
	content = follow.Content[targets]
	state   = follow.Seen[targets]
)

var _ resolve.Resolver = (*Resolver)(nil)

// New returns a Resolver for the file at path. A relative path is relative to the working
// directory at each poll. The file is not read before Resolve is called. To reject an invalid
// file at program start, call [Parse] first. New panics if path is empty.
func New(path string) *Resolver {
	if path == "" {
		panic("file: New: the path is empty")
	}
	return newResolver(path, follow.Interval)
}

// newResolver returns a Resolver that looks at the file at path each time every, which tests make short.
func newResolver(path string, every time.Duration) *Resolver {
	// Look reads the file only if it has changed since the last call.
	return &Resolver{follow.NewPoller(every, (&follow.File[targets]{Path: path, Max: follow.MaxSize, Parse: Parse}).Look)}
}

// Resolve yields all endpoints of target, and again after each change, until ctx ends or the
// consumer breaks. A target that is not in the file does not exist.
//
// If the file cannot be read or contains mistakes, the stream yields one error, which joins an
// [*Error] for each mistake. The last valid content stays active, even for streams that start
// later. When the file is valid again, an update is yielded, even if nothing has changed.
//
// A slow consumer gets only the latest change. For a target that is empty, or contains white
// space or control characters, the stream yields the final error [resolve.ErrUnresolvable].
func (r *Resolver) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		if ctx.Err() != nil {
			return
		}
		if err := checkName(target); err != nil {
			yield(resolve.Update{}, fmt.Errorf("file: target %q: %w: %w", target, resolve.ErrUnresolvable, err))
			return
		}
		// v remembers what this stream has yielded. The file's state is shared by all streams.
		v := view{target: target}
		for range r.poller.States(ctx) {
			// A change of the file may cause an update and an error. Until the consumer has handled
			// one, the file may change again, so the latest state is read each time.
			for ctx.Err() == nil {
				u, ok, err := v.next(r.poller.Latest())
				if !ok {
					break
				}
				if !yield(u, err) {
					return
				}
			}
		}
	}
}

// view is the state of one stream. It records what the stream has yielded, to find out whether a new
// state of the file matters to its target.
type view struct {
	target    string
	last      *content // the content that the method changed examined last; nil before
	endpoints []resolve.Endpoint
	exists    bool     // the target is in the content
	failed    *content // the content of the last error; nil after an update has ended it
}

// next returns the next item that the stream must yield for the state s of the file. ok is false
// if nothing must be yielded. If both an update and an error are due, next returns the update
// first, so that a stream has endpoints while the file contains mistakes.
func (v *view) next(s *state) (u resolve.Update, ok bool, err error) {
	// The file is valid again. Even without a difference, an update must end the consumer's error.
	recovered := v.failed != nil && s.Latest.Err == nil
	if s.Good != nil && v.changed(s.Good) || recovered {
		if recovered {
			v.failed = nil
		}
		return v.update(), true, nil
	}
	// Each new content with mistakes is reported once.
	if s.Latest.Err != nil && s.Latest != v.failed {
		v.failed = s.Latest
		return resolve.Update{}, true, yamlfile.Located(s.Latest.Err)
	}
	return resolve.Update{}, false, nil
}

// changed reports whether the endpoints of the target in c differ from those in the
// previous content. It stores c as the previous content.
func (v *view) changed(c *content) bool {
	if c == v.last {
		return false
	}
	endpoints, exists := c.Value[v.target]
	// v.last is nil at first, so that the first content is always a change, also for a target that is missing.
	unchanged := v.last != nil && exists == v.exists && slices.EqualFunc(endpoints, v.endpoints, resolve.Endpoint.Equal)
	v.last, v.endpoints, v.exists = c, endpoints, exists
	return !unchanged
}

// update returns all endpoints of the target. The consumer may modify the slice.
func (v *view) update() resolve.Update {
	switch {
	case !v.exists:
		return resolve.Update{Kind: resolve.DoesNotExist}
	case len(v.endpoints) == 0:
		return resolve.Update{Kind: resolve.Empty}
	}
	return resolve.Update{Kind: resolve.Replace, Endpoints: slices.Clone(v.endpoints)}
}
