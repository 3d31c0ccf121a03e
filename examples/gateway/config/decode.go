package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// The types of this package are the file format. A field has the tags
//
//	yaml      its name in the file
//	is        "required", if it must be present
//	default   the text of its value if it is absent
//	enum      the allowed words of a string
//	min, max  the range of a number
//
// A struct that is not a pointer has the defaults of its fields if it is absent.

// scalar is implemented by types with their own syntax for a value. parse sets the value from
// text. An error of parse contains only the allowed values, such as "an HTTP method in upper
// case", because decodeScalar puts "want" before it.
type scalar interface {
	parse(text string) error
}

// union is implemented by structs with alternative fields. oneOf returns the names of these
// fields. Exactly one of them must be set.
type union interface {
	oneOf() []string
}

// checked is implemented by structs with rules that the tags of their fields cannot
// express. check reports violations as mistakes at n, the node of the struct. decodeStruct
// calls check only if the fields of the struct have no mistakes.
type checked interface {
	check(n node)
}

// Error is one mistake in a file. It has the fields File, Line, Column, Field, Value and
// Reason.
type Error = yamlfile.Error

// source is the file that is decoded, with the mistakes that have been found so far.
type source struct {
	*yamlfile.File
	dir      string // folder of the file; "" if a program has generated the file
	read     func(path string) ([]byte, error)
	contents []Content // the files that were read
}

// node is one part of the file, and its path from the root, such as "routes[2].timeouts".
type node struct {
	*source
	n    *yaml.Node
	path string
}

// failf reports a mistake at the position of n.
func (n node) failf(format string, args ...any) {
	yamlfile.Value{File: n.File, Node: n.n, Path: n.path}.Failf(format, args...)
}

// at returns the node of the field with the given name in the mapping n. If the field is
// absent, it returns an empty node with the path of the field and the position of the
// mapping.
func (n node) at(name string) node {
	path := name
	if n.path != "" {
		path = n.path + "." + name
	}
	if n.n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.n.Content); i += 2 {
			if n.n.Content[i].Value == name {
				return node{n.source, n.n.Content[i+1], path}
			}
		}
	}
	return node{n.source, &yaml.Node{Line: n.n.Line, Column: n.n.Column}, path}
}

// has reports whether the mapping n has the field with the given name, and its value is not
// null.
func (n node) has(name string) bool {
	field := n.at(name)
	return field.n.Kind != 0 && !yamlfile.IsNull(field.n)
}

// item returns the node of the i-th item of the list n, from 0. If the list is shorter, it
// returns an empty node with the position of the list.
func (n node) item(i int) node {
	child := &yaml.Node{Line: n.n.Line, Column: n.n.Column}
	if n.n.Kind == yaml.SequenceNode && i < len(n.n.Content) {
		child = n.n.Content[i]
	}
	return node{n.source, child, fmt.Sprintf("%s[%d]", n.path, i)}
}

func (n node) is(kind yaml.Kind, want string) bool {
	if n.n.Kind == kind && n.n.Style&yaml.TaggedStyle == 0 {
		return true
	}
	n.failf("want %s, not %s", want, yamlfile.Kind(n.n))
	return false
}

// decode sets v to the value of n and reports mistakes. tag is the tag of the struct field
// to which v belongs. It has the allowed values of v.
func (n node) decode(v reflect.Value, tag reflect.StructTag) {
	switch s := v.Addr().Interface().(type) {
	case *File:
		n.decodeFile(s)
		return
	case scalar:
		n.decodeScalar(s.parse)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		n.decode(v.Elem(), tag)
	case reflect.Struct:
		n.decodeStruct(v)
	case reflect.Slice:
		if n.is(yaml.SequenceNode, "a list") {
			v.Set(reflect.MakeSlice(v.Type(), len(n.n.Content), len(n.n.Content)))
			for i := range n.n.Content {
				n.item(i).decode(v.Index(i), tag)
			}
		}
	default:
		n.decodeScalar(func(text string) error { return parsePlain(v, tag, text) })
	}
}

// decodeScalar calls parse with the text of n. It reports a mistake if n is a list or
// mapping, if n is null, or if parse returns an error.
func (n node) decodeScalar(parse func(string) error) {
	switch {
	case !n.is(yaml.ScalarNode, "a single value"):
	case yamlfile.IsNull(n.n):
		n.failf("want a value")
	default:
		if err := parse(n.n.Value); err != nil {
			n.failf("want %v", err)
		}
	}
}

// parsePlain parses text and stores the result in v, a string, a bool or a number. The argument
// tag has the allowed values. An error contains only the allowed values, such as "a number from 0
// to 1", because decodeScalar puts "want" before it.
func parsePlain(v reflect.Value, tag reflect.StructTag, text string) error {
	switch v.Kind() {
	case reflect.Bool:
		if text != "true" && text != "false" { // YAML 1.2: no yes, no, on, off
			return errors.New("true or false")
		}
		v.SetBool(text == "true")
	case reflect.String:
		if words := tag.Get("enum"); words != "" && !slices.Contains(strings.Split(words, ","), text) {
			return fmt.Errorf("one of %s", strings.ReplaceAll(words, ",", ", "))
		}
		if text == "" {
			return errors.New("a text that is not empty")
		}
		v.SetString(text)
	case reflect.Int:
		i, err := strconv.Atoi(text)
		if err != nil || !inRange(tag, float64(i)) {
			return fmt.Errorf("a whole number from %s to %s", tag.Get("min"), tag.Get("max"))
		}
		v.SetInt(int64(i))
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || !inRange(tag, f) {
			return fmt.Errorf("a number from %s to %s", tag.Get("min"), tag.Get("max"))
		}
		v.SetFloat(f)
	default:
		panic("config: a field of type " + v.Type().String())
	}
	return nil
}

func inRange(tag reflect.StructTag, f float64) bool {
	low, err1 := strconv.ParseFloat(tag.Get("min"), 64)
	high, err2 := strconv.ParseFloat(tag.Get("max"), 64)
	if err1 != nil || err2 != nil {
		panic("config: a number without min and max")
	}
	return low <= f && f <= high
}

// decodeStruct sets the fields of the struct v from the mapping n and reports mistakes. A
// field that is null counts as absent.
func (n node) decodeStruct(v reflect.Value) {
	setDefaults(v)
	if !n.is(yaml.MappingNode, "a mapping") {
		return
	}
	before := len(n.Mistakes)
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.n.Content); i += 2 {
		key := node{n.source, n.n.Content[i], n.path}
		if !key.is(yaml.ScalarNode, "the name of a field") {
			continue
		}
		item := n.at(key.n.Value)
		item.n = n.n.Content[i+1]
		place := node{n.source, &yaml.Node{Line: key.n.Line, Column: key.n.Column}, item.path}
		if line, twice := seen[key.n.Value]; twice {
			place.failf("given twice, first in line %d", line)
			continue
		}
		seen[key.n.Value] = key.n.Line
		field, ok := fieldByName(v.Type(), key.n.Value)
		switch {
		case !ok:
			place.failf("unknown field: want one of %s", strings.Join(fieldNames(v.Type()), ", "))
		case !yamlfile.IsNull(item.n):
			item.decode(v.FieldByIndex(field.Index), field.Tag)
		}
	}
	n.checkPresence(v)
	if c, ok := reflect.TypeAssert[checked](v.Addr()); ok && len(n.Mistakes) == before {
		c.check(n)
	}
}

// checkPresence reports the required fields of the struct v that are absent in n. If v is
// a union, it also reports a mistake unless n has exactly one field of the union.
func (n node) checkPresence(v reflect.Value) {
	for _, f := range fieldsOf(v.Type()) {
		name := f.Tag.Get("yaml")
		if f.Tag.Get("is") == "required" && !n.has(name) {
			n.at(name).failf("missing: %s is required", name)
		}
	}
	u, ok := reflect.TypeAssert[union](v.Addr())
	if !ok {
		return
	}
	var given []string
	for _, name := range u.oneOf() {
		if n.has(name) {
			given = append(given, name)
		}
	}
	want := strings.Join(u.oneOf(), ", ")
	place := node{n.source, &yaml.Node{Line: n.n.Line, Column: n.n.Column}, n.path}
	switch len(given) {
	case 0:
		place.failf("missing: want exactly one of %s", want)
	case 1:
	default:
		place.failf("%s exclude each other: want exactly one of %s", strings.Join(given, " and "), want)
	}
}

// setDefaults sets the fields of the struct v to the defaults in their tags.
func setDefaults(v reflect.Value) {
	for _, f := range fieldsOf(v.Type()) {
		field := v.FieldByIndex(f.Index)
		text, ok := f.Tag.Lookup("default")
		switch s, custom := reflect.TypeAssert[scalar](field.Addr()); {
		case custom && ok:
			mustDefault(f, s.parse(text))
		case ok:
			mustDefault(f, parsePlain(field, f.Tag, text))
		case !custom && field.Kind() == reflect.Struct:
			setDefaults(field)
		}
	}
}

func mustDefault(f reflect.StructField, err error) {
	if err != nil {
		panic("config: the default of " + f.Name + ": " + err.Error())
	}
}

// fieldsByType caches the results of fieldsOf, by struct type.
var fieldsByType sync.Map //nolint:gochecknoglobals // cache

// fieldsOf returns the fields of the struct type t that have the tag yaml. These are the
// fields of the file format.
func fieldsOf(t reflect.Type) []reflect.StructField {
	if known, ok := fieldsByType.Load(t); ok {
		return known.([]reflect.StructField) //nolint:forcetypeassert,errcheck // stored below
	}
	var fields []reflect.StructField
	for _, f := range reflect.VisibleFields(t) {
		if f.Tag.Get("yaml") != "" {
			fields = append(fields, f)
		}
	}
	fieldsByType.Store(t, fields)
	return fields
}

func fieldByName(t reflect.Type, name string) (reflect.StructField, bool) {
	for _, f := range fieldsOf(t) {
		if f.Tag.Get("yaml") == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func fieldNames(t reflect.Type) []string {
	fields := fieldsOf(t)
	names := make([]string, 0, len(fields))
	for _, f := range fields {
		names = append(names, f.Tag.Get("yaml"))
	}
	slices.Sort(names)
	return names
}
