package file

import (
	"errors"
	"fmt"
	"slices"
)

// Error is one mistake in a file. The error of [Parse], and of a stream whose
// file is wrong, joins one for each mistake, in the order of the lines.
type Error struct {
	File   string // as it was named to New or Parse
	Line   int    // from 1
	Reason string // what is wrong and what to do
}

// Error reads like a compiler's message: file:line: reason.
func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason) }

// located leaves mistakes as they are: they say where. The rest is from the
// operating system.
func located(err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return fmt.Errorf("file: %w", err)
}

// mistakes collects what is wrong with a file.
type mistakes struct {
	file  string
	lines int // in the file
	found []*Error
}

// failf notes a mistake. What is missing at the very end of a file has a line
// after the last one, which no editor can go to.
func (m *mistakes) failf(line int, format string, args ...any) {
	line = min(max(line, 1), m.lines)
	m.found = append(m.found, &Error{File: m.file, Line: line, Reason: fmt.Sprintf(format, args...)})
}

// err joins what was found in the order of the lines.
func (m *mistakes) err() error {
	slices.SortStableFunc(m.found, func(a, b *Error) int { return a.Line - b.Line })
	errs := make([]error, 0, len(m.found))
	for _, e := range m.found {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}
