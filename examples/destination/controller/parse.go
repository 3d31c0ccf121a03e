package controller

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// FileError is an error at one line of a configuration file.
type FileError struct {
	File   string
	Line   int // from 1
	Reason string
}

// Error returns the text "FILE:LINE: REASON".
func (e *FileError) Error() string {
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
}

// reader converts one configuration file to a [Config], and collects the errors in the
// file.
type reader struct {
	file    string
	lines   int // number of lines of the file
	errs    []*FileError
	partial bool // parts of the file could not be decoded, so fields may be missing

	exists map[target]bool // the destinations of the file, without those with "exists: false"
}

// Parse returns the configuration in data, which is the content of a YAML file. Errors
// contain name as the name of the file. The error joins a [*FileError] for each mistake, in
// the order of the lines. After a YAML syntax error, no other errors are reported.
//
// These are errors: unknown fields, unknown protocols, a second YAML document, a value that
// is given twice, and an empty file. An empty file is an error because it is probably still
// being written. For a configuration without destinations, write "destinations: {}".
func Parse(name string, data []byte) (Config, error) {
	r := reader{file: name, lines: 1 + bytes.Count(data, []byte("\n"))}
	if bad := unreadable(data); bad != nil {
		r.errs = append(r.errs, bad)
		return Config{}, r.err()
	}
	file, given := r.decode(data)
	if r.err() == nil && !given {
		r.failf(1, `the file is empty; write "destinations: {}" for no destinations`)
	}
	cfg := r.config(file)
	if err := r.err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// decode decodes the YAML document of the file, and adds the errors in the document to r. If r has
// no errors, the result given reports whether the file has the field destinations.
func (r *reader) decode(data []byte) (file fileYAML, given bool) {
	all, err := yamlfile.Documents(data, math.MaxInt)
	if err != nil {
		r.errs = append(r.errs, syntaxError(err, data))
		return file, false
	}
	if len(all) == 0 {
		return file, false
	}
	for _, extra := range all[1:] {
		r.failf(extra.Line, "a second document is not allowed")
	}
	bad := inspect(all[0], map[*yaml.Node]bool{})
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

// failf adds an error at the given line.
func (r *reader) failf(line int, format string, args ...any) {
	r.errs = append(r.errs, &FileError{Line: line, Reason: fmt.Sprintf(format, args...)})
}

// missing adds an error about a missing field at the given line, with the text
// message. It adds nothing if parts of the file could not be decoded, because the field
// may be in such a part.
func (r *reader) missing(line int, message string) {
	if !r.partial {
		r.failf(line, "%s", message)
	}
}

// check adds err as an error at the given line. It does nothing if err is nil.
func (r *reader) check(line int, err error) {
	if err != nil {
		r.failf(line, "%s", err)
	}
}

// err returns all errors of r, joined in the order of their lines. It returns nil if r has
// no errors. The line of an error about a missing field may be beyond the end of the file.
// err reports the last line of the file instead.
func (r *reader) err() error {
	slices.SortStableFunc(r.errs, func(a, b *FileError) int { return a.Line - b.Line })
	errs := make([]error, 0, len(r.errs))
	for _, e := range r.errs {
		e.File, e.Line = r.file, min(e.Line, r.lines)
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}
