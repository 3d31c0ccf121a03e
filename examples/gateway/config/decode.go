package config

import (
	"reflect"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// The types in this package are the file format, with tags for [yamlfile.Decoder].

// scalar is implemented by types whose values have a syntax of their own. An error from parse
// says only what is allowed, such as "an HTTP method in upper case", because the decoder puts
// "want" in front of it.
type scalar interface {
	parse(text string) error
}

// union is implemented by structs with alternative fields, which oneOf returns. Exactly one must
// be set.
type union interface {
	oneOf() []string
}

// checked is implemented by structs with rules that tags cannot express. check reports violations
// at n, the struct's node. It is called only if the fields themselves are valid.
type checked interface {
	check(n node)
}

// fieldsOfItems holds default fields for a list of T. It is empty after decoding, because
// [source.applyDefaults] has copied the fields to the items.
type fieldsOfItems[T any] struct{}

func (*fieldsOfItems[T]) itemType() reflect.Type { return reflect.TypeFor[T]() }

// Error is a mistake in a file. Its fields say where: File, Line, Column and Field, with the
// Value and the Reason.
type Error = yamlfile.Error

// node is a part of the file, and its path from the root, such as "routes[2].timeouts".
type node struct {
	*source
	n    *yaml.Node
	path string
}

func (s *source) nodeOf(v yamlfile.Value) node { return node{s, v.Node, v.Path} }

// value returns n for package yamlfile. A node without a source collects its mistakes in a file of its own.
func (n node) value() yamlfile.Value {
	if n.source == nil {
		return yamlfile.Value{File: new(yamlfile.File), Node: n.n, Path: n.path}
	}
	return yamlfile.Value{File: n.File, Node: n.n, Path: n.path}
}

// failf reports a mistake at the position of n.
func (n node) failf(format string, args ...any) { n.value().Failf(format, args...) }

// warnf adds a warning at the position of n.
func (n node) warnf(format string, args ...any) { n.value().Warnf(format, args...) }

// hidden returns a node in the same place as n. Mistakes reported there do not show the value,
// which may be a secret.
func (n node) hidden() node {
	return node{n.source, &yaml.Node{Line: n.n.Line, Column: n.n.Column}, n.path}
}

// at returns the field with the given name in the mapping n. For an absent field, it returns an
// empty node with the field's path and the mapping's position.
func (n node) at(name string) node { return n.nodeOf(n.value().At(name)) }

// has reports whether the mapping n contains the named field with a value other than null.
func (n node) has(name string) bool { return n.value().Has(name) }

// item returns item i of the list n, counting from 0. If the list is shorter, it returns an empty
// node at the list's position.
func (n node) item(i int) node { return n.nodeOf(n.value().Item(i)) }

func (n node) is(kind yaml.Kind, want string) bool { return n.value().Is(kind, want) }

// decoder returns a decoder for the types in this package.
func (s *source) decoder() *yamlfile.Decoder {
	d := &yamlfile.Decoder{Expand: s.expand}
	// Types with a syntax of their own parse their text.
	d.Parse = func(target any) func(string) error {
		if v, ok := target.(scalar); ok {
			return v.parse
		}
		return nil
	}
	d.Special = func(v yamlfile.Value, target any) bool {
		switch t := target.(type) {
		case *File:
			s.decodeFile(d, v, t)
		// These are the defaults for items. Only their names are checked here.
		case interface{ itemType() reflect.Type }:
			names := make(yamlfile.Fields)
			for _, f := range yamlfile.FieldsOf(t.itemType()) {
				names[f.Tag.Get("yaml")] = func(yamlfile.Value) {} // decoded with each item
			}
			v.Read(names)
		default:
			return false
		}
		return true
	}
	d.OneOf = func(target any) []string {
		if v, ok := target.(union); ok {
			return v.oneOf()
		}
		return nil
	}
	d.Check = func(v yamlfile.Value, target any) {
		if c, ok := target.(checked); ok {
			c.check(s.nodeOf(v))
		}
	}
	return d
}
