package profiles

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// FieldError is a mistake in one field of a [Profile] or [Route].
type FieldError struct {
	Field string // the path of the field: "Routes[2].Redirect", or "Redirect" in a Route
	Err   error  // the mistake
}

// Error returns the path of the field and the mistake.
func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap returns Err, so that errors.Is and errors.As find what is wrong with the field.
func (e *FieldError) Unwrap() error { return e.Err }

// FieldErrors are the mistakes in a [Profile] or [Route]. Its Validate returns them as one error.
type FieldErrors []*FieldError //nolint:recvcheck // add and negative collect mistakes

// Error returns the mistakes, one on each line.
func (e FieldErrors) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap returns the members of e, so that errors.As finds each [*FieldError].
func (e FieldErrors) Unwrap() []error {
	mistakes := make([]error, len(e))
	for i, mistake := range e {
		mistakes[i] = mistake
	}
	return mistakes
}

// orNil returns e as an error, which is nil without mistakes.
func (e FieldErrors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// add appends a mistake in the given field, unless err is nil. If err is itself a FieldErrors, its paths
// begin at this field. add reports whether err is not nil.
func (e *FieldErrors) add(field string, err error) bool {
	if err == nil {
		return false
	}
	inner, ok := errors.AsType[FieldErrors](err)
	for _, mistake := range inner {
		*e = append(*e, &FieldError{field + "." + mistake.Field, mistake.Err})
	}
	if !ok {
		*e = append(*e, &FieldError{field, err})
	}
	return true
}

// negative adds a mistake in the given field, and sets *d to 0, if *d is negative.
func (e *FieldErrors) negative(field string, d *time.Duration) {
	if *d < 0 {
		e.add(field, fmt.Errorf("%v is below 0", *d))
		*d = 0
	}
}

// routeError returns the mistake err in r, which is at the position i of a profile. The path of a
// FieldError begins at r.
func routeError(i int, r *Route, err error) *FieldError {
	field := item("Routes", i)
	if inner, ok := errors.AsType[*FieldError](err); ok {
		field, err = field+"."+inner.Field, inner.Err
	}
	if r.Name != "" {
		err = fmt.Errorf("route %q: %w", r.Name, err)
	}
	return &FieldError{field, err}
}

// item returns the path of a member of a list.
func item(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }
