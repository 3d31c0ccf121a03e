package file

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Error is a mistake in a file, or a part of a file that is left out. [Parse] and
// [Source.Watch] return one for each mistake, joined into one error.
type Error struct {
	File   string // the name given to New or Parse, or the path in the directory
	Line   int    // from 1
	Column int    // from 1; 0 if only the line is known
	Field  string // "spec.routes[2].timeout"; empty: the whole document
	Value  string // the text of the field; empty if it is not a scalar
	Reason string // the mistake and the allowed values
}

// Error has the format of compiler messages: file:line:column: field "value": reason.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File + ":" + strconv.Itoa(e.Line) + ":")
	if e.Column > 0 {
		b.WriteString(strconv.Itoa(e.Column) + ":")
	}
	if e.Field != "" {
		b.WriteString(" " + e.Field)
		if e.Value != "" {
			b.WriteString(" " + strconv.Quote(e.Value))
		}
		b.WriteString(":")
	}
	b.WriteString(" " + e.Reason)
	return b.String()
}

// inOrder sorts errors by line and column.
func inOrder(notes []*Error) {
	slices.SortStableFunc(notes, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
}

func join(notes []*Error) error {
	errs := make([]error, 0, len(notes))
	for _, e := range notes {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}
