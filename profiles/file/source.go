package file

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"strings"

	"github.com/gotower/gotower/internal/follow"
	"github.com/gotower/gotower/profiles"
)

// Source has the profiles of a file, or of the files of a directory. It is safe
// for concurrent use, and must not be copied. It holds nothing that has to be
// closed: its one goroutine, which looks at the files, runs only while somebody
// watches. Between that it keeps nothing but what was last good.
type Source struct {
	namespace string
	poller    *follow.Poller[state]
}

var _ profiles.Source = (*Source)(nil)

// New returns a Source of the file at path, or of the files in the directory at
// path that end in .yaml, .yml or .json and do not begin with a dot; a relative
// path is taken from the directory the process is in at each look. Nothing is
// touched before Watch is called. To refuse a bad file at the start of a
// program, call [Parse] on its content first. An empty path panics.
func New(path string, opts ...Option) *Source {
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
	m := &merger{log: o.log, tree: follow.Tree[*Set]{Path: path, Max: o.max, Wanted: isProfileFile, Parse: Parse}}
	return &Source{namespace: o.namespace, poller: follow.NewPoller(o.every, m.look)}
}

func isProfileFile(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// Watch yields the profile of target, and again after each change of it, until
// ctx ends or the consumer breaks. A target that no file names has the default
// profile until a file names it. If a change removes the profile of a target, as
// when target is renamed, the stream yields an error that lists the targets found,
// and the last profile stays active. A [profiles.Router] logs it as a warning. To
// return to the default profile, write the target without any other field.
//
// Files that cannot be read or have mistakes are an error, yielded once for as
// long as it stays the same, with an [*Error] in it for each mistake. The last
// valid content of each file stays active. If a file has never been valid and no
// other file names the target, the stream yields only the error. When all files
// are valid again, the profile is yielded again, even if it is unchanged.
//
// A slow consumer gets the latest profile only. A target that is neither a name
// nor an address, with a port or without, has the final error
// [profiles.ErrNoProfile].
func (s *Source) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		host, port, ok := splitTarget(target)
		if !ok && ctx.Err() == nil {
			yield(nil, fmt.Errorf("file: target %q: %w: neither a name nor an address", target, profiles.ErrNoProfile))
		}
		if !ok {
			return
		}
		v := view{target: target, host: host, port: port, namespace: s.namespace}
		for range s.poller.States(ctx) {
			for ctx.Err() == nil {
				p, err := v.next(s.poller.Latest())
				if p == nil && err == nil {
					break
				}
				if !yield(p, err) {
					return
				}
			}
		}
	}
}
