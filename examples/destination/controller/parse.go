package controller

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// FileError is one mistake in a file.
type FileError struct {
	File   string
	Line   int // from 1
	Reason string
}

// Error reads like a compiler's message: file:line: reason.
func (e *FileError) Error() string {
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
}

// reader turns a decoded file into a configuration and collects what is wrong
// with it.
type reader struct {
	file    string
	lines   int // in the file
	errs    []*FileError
	partial bool // some of the file could not be decoded
}

// Parse reads a configuration. The name is for errors only. The error joins a
// [*FileError] for every mistake, in the order of the lines; mistakes in the
// YAML itself are told alone, because nothing behind them can be read.
//
// What is not known is an error: fields, protocols, a second document. Nothing
// can be given twice, whatever its spelling. A file without any content is
// refused, because it is more likely a file that is being written than a wish
// to serve nothing: for that, write "destinations: {}".
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

// decode reads the only document of a file, and reports whether there is
// anything in it.
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
		return file, true // the decoder would pass over some of it
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	r.errs = append(r.errs, decodeErrors(decoder.Decode(&file))...)
	r.partial = len(r.errs) > 0
	return file, file.Destinations != nil
}

// failf notes a mistake and goes on.
func (r *reader) failf(at int, format string, args ...any) {
	r.errs = append(r.errs, &FileError{Line: at, Reason: fmt.Sprintf(format, args...)})
}

// missing reports something that is not there. In a file of which a part could
// not be decoded it may well be there.
func (r *reader) missing(at int, what string) {
	if !r.partial {
		r.failf(at, "%s", what)
	}
}

// check notes the error of a check, if there is one.
func (r *reader) check(at int, err error) {
	if err != nil {
		r.failf(at, "%s", err)
	}
}

// err joins the mistakes in the order of their lines. What is missing at the
// very end would have a line after the last one.
func (r *reader) err() error {
	slices.SortStableFunc(r.errs, func(a, b *FileError) int { return a.Line - b.Line })
	errs := make([]error, 0, len(r.errs))
	for _, e := range r.errs {
		e.File, e.Line = r.file, min(e.Line, r.lines)
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}
