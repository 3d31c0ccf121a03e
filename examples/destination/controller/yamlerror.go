package controller

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// unreadable returns an error for the first byte of data that YAML does not allow. It
// returns nil if all bytes are allowed. The YAML package also rejects such bytes, but does
// not report their line.
func unreadable(data []byte) *FileError {
	at := 1
	for rest := bytes.TrimPrefix(data, []byte("\ufeff")); len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		switch {
		case r == utf8.RuneError && size == 1:
			return &FileError{Line: at, Reason: fmt.Sprintf("byte %#x is not UTF-8", rest[0])}
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r == 0x7f:
			return &FileError{Line: at, Reason: fmt.Sprintf("control character %U", r)}
		case r == '\n':
			at++
		}
		rest = rest[size:]
	}
	return nil
}

// decodeErrors converts the error of the YAML decoder to errors that contain the field
// names of the file instead of Go types. It returns nil if err is nil.
func decodeErrors(err error) []*FileError {
	if err == nil {
		return nil
	}
	var mistakes *yaml.TypeError
	if !errors.As(err, &mistakes) { // too many aliases
		return []*FileError{{Line: 1, Reason: strings.TrimPrefix(err.Error(), "yaml: ")}}
	}
	found := make([]*FileError, 0, len(mistakes.Errors))
	for _, e := range mistakes.Errors {
		at, reason := yamlfile.CutLine(e)
		found = append(found, &FileError{Line: max(at, 1), Reason: rephrase(reason)})
	}
	return found
}

// rephrase replaces the Go types in reason, an error message of the YAML decoder. The new
// message has field names, or a kind of value such as "a list". It returns any other
// message unchanged.
func rephrase(reason string) string {
	if m := regexp.MustCompile(`(?s)^field (.*) not found in type (\S+)$`).FindStringSubmatch(reason); m != nil {
		return fmt.Sprintf("unknown field %q; there are %s", m[1], strings.Join(fieldsOf(m[2]), ", "))
	}
	if m := regexp.MustCompile(`(?s)^mapping key (".*") already defined at line (\d+)$`).FindStringSubmatch(reason); m != nil {
		return fmt.Sprintf("%s is given twice, first in line %s", m[1], m[2])
	}
	if m := regexp.MustCompile(`(?s)^cannot unmarshal !!(\w+).* into (\S+)$`).FindStringSubmatch(reason); m != nil {
		kinds := map[string]string{"map": "a mapping", "seq": "a list"} // other tags are those of scalars
		want := kinds["map"]
		if strings.HasPrefix(m[2], "[]") {
			want = kinds["seq"]
		}
		return fmt.Sprintf("want %s, not %s", want, cmp.Or(kinds[m[1]], "a single value"))
	}
	return reason
}

// syntaxError converts err, a syntax error of the YAML package, to an error with its line
// in data.
func syntaxError(err error, data []byte) *FileError {
	line, reason := yamlfile.SyntaxError(data, err, func(data []byte) error {
		_, err := yamlfile.Documents(data, math.MaxInt)
		return err
	})
	return &FileError{Line: line, Reason: reason}
}

// inspect returns the errors in n that the decoder does not report, or reports without a
// line. They are null items of lists, null keys of mappings, and aliases of a node that
// contains the alias itself. within is the set of nodes that contain n.
func inspect(n *yaml.Node, within map[*yaml.Node]bool) []*FileError {
	var found []*FileError
	within[n] = true
	defer delete(within, n)
	for i, inner := range n.Content {
		switch {
		case n.Kind == yaml.SequenceNode && isNull(inner):
			found = append(found, &FileError{Line: inner.Line, Reason: "an empty item in a list"})
		case n.Kind == yaml.MappingNode && i%2 == 0 && isNull(inner):
			found = append(found, &FileError{Line: inner.Line, Reason: "an empty key in a mapping"})
		case inner.Kind == yaml.AliasNode && within[inner.Alias]:
			found = append(found, &FileError{Line: inner.Line, Reason: fmt.Sprintf("*%s is within &%[1]s itself", inner.Value)})
		}
		found = append(found, inspect(inner, within)...)
	}
	return found
}

// isNull reports whether n is null, or an alias of a node that is null.
func isNull(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n.ShortTag() == "!!null"
}
