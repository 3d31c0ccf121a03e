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

// Source provides the profiles of a file, or of the files in a directory. It is safe
// for concurrent use, needs no Close, and must not be copied. Its goroutine polls the
// files and runs only while there are streams.
type Source struct {
	poller *follow.Poller[state]
}

var _ profiles.Source = (*Source)(nil)

// New returns a Source of the file at path. If path is a directory, its files that end
// in .yaml, .yml or .json and do not begin with a dot are used. A relative path is
// resolved at each poll. No file is read before Watch is called. To reject an invalid
// file when a program starts, call [Parse] on its content first. An empty path panics.
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

// Watch yields the profile of target, and again after each change, until ctx ends or the consumer
// breaks. A target that is in no file has the default profile. If a change removes the profile of a
// target, the stream yields an error that lists the targets found, and the last profile stays
// active. To return to the default profile, write the target without any other field.
//
// Unreadable files and mistakes are an error with an [*Error] for each mistake. It is yielded again
// only if it changes. The last valid content of each file stays active. If a file was never valid
// and no other file has the target, only the error is yielded. When all files are valid again, the
// profile is yielded, even if it is unchanged.
//
// A slow consumer receives only the latest profile. A target that is neither a name nor
// an address has the final error [profiles.ErrNoProfile].
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

// view records what one stream has yielded.
type view struct {
	target string
	host   string
	port   uint16

	seen    *state            // the last state that update has examined
	profile *profiles.Profile // the last profile yielded; nil before the first
	named   bool              // whether a file has had the target
	err     string            // the last error yielded; empty after the recovery
}

// next returns the next item to yield for st, or nil and nil. A profile is yielded
// before an error, because it is valid in spite of mistakes in other files.
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

// update sets the profile to now if it must be yielded, and reports whether it must. now is nil if
// no file has the target. After a recovery, an equal profile is yielded again.
func (v *view) update(now *profiles.Profile, complete, healthy bool) bool {
	switch {
	case now != nil:
		v.named = true
	case !complete || v.named:
		return false // an unread file may have the target, or it was removed
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

// removed returns the error for a target that has disappeared from all files.
func (v *view) removed(found []string) error {
	const most = 10
	list := strings.Join(found[:min(len(found), most)], ", ")
	if len(found) > most {
		list += fmt.Sprintf(" and %d more", len(found)-most)
	}
	list = cmp.Or(list, "none")
	return fmt.Errorf("file: the profile of target %q was removed; its last profile stays active; targets found: %s", v.target, list)
}

// state is the merged content of all files. It is immutable.
type state struct {
	set   *Set
	whole bool  // whether each file has been valid once, so that set has all targets
	err   error // current error of the files
}

// merger merges the files. Only the polling goroutine uses it.
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

// look reads changed files and returns the merged state. It returns the same pointer if
// nothing changed.
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

// merge merges the profiles of the files in order. If two files have a profile for one
// target, the first is used, and the second is a mistake.
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

// located adds the name of the package to errors of the operating system. An [*Error]
// already has the name of the file.
func located(err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return fmt.Errorf("file: %w", err)
}
