package file

import (
	"errors"
	"fmt"
	"slices"
)

// Error is one mistake in a file. The errors of [Parse] and of a stream join one Error
// for each mistake, in the order of the lines.
type Error struct {
	File   string // the name given to New or Parse
	Line   int    // from 1
	Reason string // the mistake and how to correct it
}

// Error returns file:line: reason, as a compiler does.
func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason) }

// located adds the package name to errors of the operating system. It returns mistakes
// unchanged, because they have the file name.
func located(err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return fmt.Errorf("file: %w", err)
}

// mistakes collects the mistakes in a file.
type mistakes struct {
	file  string
	lines int // number of lines in the file
	found []*Error
}

// failf adds a mistake. line is limited to the number of lines, because something may
// be missing after the last line.
func (m *mistakes) failf(line int, format string, args ...any) {
	line = min(max(line, 1), m.lines)
	m.found = append(m.found, &Error{File: m.file, Line: line, Reason: fmt.Sprintf(format, args...)})
}

// err returns the mistakes, joined in the order of the lines, or nil.
func (m *mistakes) err() error {
	slices.SortStableFunc(m.found, func(a, b *Error) int { return a.Line - b.Line })
	errs := make([]error, 0, len(m.found))
	for _, e := range m.found {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}
