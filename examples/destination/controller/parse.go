package controller

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// FileError is one error in a file.
type FileError struct {
	File   string
	Line   int // from 1
	Reason string
}

// Error returns file:line: reason.
func (e *FileError) Error() string {
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
}

// reader converts a decoded file to a configuration and collects errors.
type reader struct {
	file    string
	lines   int // in the file
	errs    []*FileError
	partial bool // some of the file could not be decoded
}

// Parse parses a configuration. The name is for errors. The error joins a [*FileError] for
// each error, in the order of the lines. After a YAML syntax error, no other errors are
// reported.
//
// Unknown fields and protocols, a second document, and values that are given twice are
// errors. A file without content is an error, because it is probably being written. The
// configuration without destinations is "destinations: {}".
func Parse(name string, data []byte) (Config, error) {
	r := reader{file: name, lines: 1 + bytes.Count(data, []byte("\n"))}
	if bad := unreadable(data); bad != nil {
		r.errs = append(r.errs, bad)
		return Config{}, r.err()
	}
	file, given := r.decode(data)
	if r.err() == nil && !given {
		r.failf(1, `there is nothing in the file; to serve nothing, write "destinations: {}"`)
	}
	cfg := r.config(file)
	if err := r.err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// decode decodes the only document of a file. It reports whether the file has content.
func (r *reader) decode(data []byte) (file fileYAML, given bool) {
	all, err := documents(data)
	if err != nil {
		r.errs = append(r.errs, syntaxError(err, data))
		return file, false
	}
	if len(all) == 0 {
		return file, false
	}
	for _, extra := range all[1:] {
		r.failf(extra.Line, "another document; one file is one configuration")
	}
	bad := inspect(&all[0], map[*yaml.Node]bool{})
	r.errs = append(r.errs, bad...)
	if len(bad) > 0 {
		return file, true // the decoder would skip parts of it
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	r.errs = append(r.errs, decodeErrors(decoder.Decode(&file))...)
	r.partial = len(r.errs) > 0
	return file, file.Destinations != nil
}

// failf adds an error.
func (r *reader) failf(at int, format string, args ...any) {
	r.errs = append(r.errs, &FileError{Line: at, Reason: fmt.Sprintf(format, args...)})
}

// missing adds an error for a missing field, unless parts of the file could not be
// decoded.
func (r *reader) missing(at int, what string) {
	if !r.partial {
		r.failf(at, "%s", what)
	}
}

// check adds err unless it is nil.
func (r *reader) check(at int, err error) {
	if err != nil {
		r.failf(at, "%s", err)
	}
}

// err joins the errors in the order of their lines. A missing field at the end has a line
// after the last one.
func (r *reader) err() error {
	slices.SortStableFunc(r.errs, func(a, b *FileError) int { return a.Line - b.Line })
	errs := make([]error, 0, len(r.errs))
	for _, e := range r.errs {
		e.File, e.Line = r.file, min(e.Line, r.lines)
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}
