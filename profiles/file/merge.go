package file

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/gotower/gotower/internal/follow"
)

// state is what all files together say at a moment. It does not change.
type state struct {
	set   *Set
	whole bool  // every file was good once, so that a target not in set is in none
	err   error // what is wrong now
}

// merger makes one of what the files say. It is the polling goroutine's.
type merger struct {
	log  *slog.Logger
	tree follow.Tree[*Set]

	seen   *follow.View[*Set]
	latest *state
	warned map[*follow.Content[*Set]]bool
}

// look returns the same pointer for as long as nothing changed.
func (m *merger) look() *state {
	view := m.tree.Look()
	if view == m.seen {
		return m.latest
	}
	before := m.latest
	m.seen, m.latest = view, merge(view)
	m.warn(view)
	if before != nil && before.err != nil && m.latest.err != nil && before.err.Error() != m.latest.err.Error() {
		m.log.Warn("the profiles are wrong in another way", "err", m.latest.err)
	}
	return m.latest
}

// merge takes the profiles of the files in order. Of two for the same target
// the first one holds, and the second is a mistake.
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
				twice = append(twice, e.because(
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

// located leaves mistakes as they are: they say where. The rest is from the
// operating system.
func located(err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return fmt.Errorf("file: %w", err)
}

// warn tells once of each content what is left out of it.
func (m *merger) warn(view *follow.View[*Set]) {
	now := make(map[*follow.Content[*Set]]bool, len(view.Files))
	for _, f := range view.Files {
		if f.Good == nil {
			continue
		}
		now[f.Good] = true
		if m.warned[f.Good] {
			continue
		}
		for _, w := range f.Good.Value.Warnings {
			m.log.Warn("left out of a profile", "err", w)
		}
	}
	m.warned = now
}
