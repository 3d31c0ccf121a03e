package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/gotower/gotower/internal/follow"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/profiles"
)

// Source has the profiles of a file, or of the files in a directory. It is safe for
// concurrent use, does not need to be closed, and must not be copied. Its goroutine,
// which polls the files, runs only while there are streams.
type Source struct {
	poller *follow.Poller[state]
}

var _ profiles.Source = (*Source)(nil)

// New returns a Source of the file at path, or of the files in the directory at path
// that end in .yaml, .yml or .json and do not begin with a dot. A relative path is
// relative to the working directory at each poll. No file is read before Watch is
// called. To reject an invalid file when a program starts, call [Parse] on its content
// first. An empty path panics.
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
	m := &merger{log: o.log}
	m.tree = follow.Tree[*Set]{Path: path, Max: o.max, Wanted: isProfileFile, Parse: m.parse}
	return &Source{poller: follow.NewPoller(o.every, m.look)}
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
		v := view{target: target, host: host, port: port}
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

// view is what one stream has yielded of its target.
type view struct {
	target string
	host   string
	port   uint16

	seen    *state            // of which profile has been yielded, or was the same
	profile *profiles.Profile // the last one yielded; nil before the first
	named   bool              // profile is from a file, not the default one
	err     string            // the last error yielded; empty after its end was yielded
}

// next returns the next item of st to yield, or nil and nil. The profile comes
// before the error, because it serves while a file has mistakes.
func (v *view) next(st *state) (*profiles.Profile, error) {
	now := st.set.profile(v.host, v.port)
	err := st.err
	if now == nil && v.named {
		err = errors.Join(err, v.removed(st.set.Targets()))
	}
	if st != v.seen {
		v.seen = st
		if v.update(now, st.whole, err == nil) {
			return v.profile, nil
		}
	}
	if err != nil && err.Error() == v.err {
		err = nil
	}
	if err != nil {
		v.err = err.Error()
	}
	return nil, err
}

// update reports whether now, which is nil if no file has the target, is to be
// yielded, and sets the profile to it. After the end of an error the same profile
// is yielded again.
func (v *view) update(now *profiles.Profile, complete, healthy bool) bool {
	switch {
	case now != nil:
		v.named = true
	case !complete || v.named:
		return false // a file that has not been read may have it, or it was removed
	default:
		now = &profiles.Profile{}
	}
	recovered := v.err != "" && healthy
	if v.profile != nil && reflect.DeepEqual(now, v.profile) && !recovered {
		return false
	}
	v.profile = now
	if recovered {
		v.err = ""
	}
	return true
}

// removed is the error for a target that the files had and no longer have.
func (v *view) removed(found []string) error {
	const most = 10
	list := strings.Join(found[:min(len(found), most)], ", ")
	if len(found) > most {
		list += fmt.Sprintf(" and %d more", len(found)-most)
	}
	list = cmp.Or(list, "none")
	return fmt.Errorf("file: the profile of target %q was removed; its last profile stays active; targets found: %s", v.target, list)
}

// state is the merged content of all files. It does not change.
type state struct {
	set   *Set
	whole bool  // every file has been valid once, so set has all targets
	err   error // of the files now
}

// merger merges the files. It is used by the polling goroutine only.
type merger struct {
	log  *slog.Logger
	tree follow.Tree[*Set]

	seen   *follow.View[*Set]
	latest *state
}

// parse parses the new content of a file and logs its warnings.
func (m *merger) parse(name string, data []byte) (*Set, error) {
	set, err := Parse(name, data)
	if err == nil {
		for _, w := range set.Warnings {
			_ = panics.Contain(func() { m.log.Warn("left out of a profile", "err", w) })
		}
	}
	return set, err
}

// look polls the files. It returns the same pointer until something changes.
func (m *merger) look() *state {
	view := m.tree.Look()
	if view == m.seen {
		return m.latest
	}
	before := m.latest
	m.seen, m.latest = view, merge(view)
	if before != nil && before.err != nil && m.latest.err != nil && before.err.Error() != m.latest.err.Error() {
		m.log.Warn("the mistakes in the profiles changed", "err", m.latest.err)
	}
	return m.latest
}

// merge merges the profiles of the files in order. Of two for one target the first is
// used, and the second is a mistake.
func merge(view *follow.View[*Set]) *state {
	st := &state{set: &Set{}, whole: view.Err == nil || len(view.Files) > 0}
	var errs []error
	if view.Err != nil {
		errs = append(errs, fmt.Errorf("file: %w", view.Err))
	}
	var twice []*Error
	for _, f := range view.Files {
		if err := f.Latest.Err; err != nil {
			errs = append(errs, located(err))
		}
		if f.Good == nil {
			st.whole = false
			continue
		}
		for _, e := range f.Good.Value.order {
			if was := st.set.add(e); was != nil {
				twice = append(twice, e.mistake(
					"another profile for %s, which has the one in %s:%d: take one out", e, was.at.File, was.at.Line))
			}
		}
	}
	if len(twice) > 0 {
		errs = append(errs, join(twice))
	}
	if len(errs) > 0 {
		st.err = errs[0]
	}
	if len(errs) > 1 {
		st.err = errors.Join(errs...)
	}
	return st
}

// located adds the package to errors of the operating system. Mistakes name the file.
func located(err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return fmt.Errorf("file: %w", err)
}
