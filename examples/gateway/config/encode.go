package config

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// Encode returns the configuration as YAML, with all defaults filled in. Variables and included
// files have been expanded, and paths are relative to the working directory. Absent fields are
// left out.
func (c *Config) Encode() ([]byte, error) {
	// Copy, because the caller's configuration must keep its list of files.
	whole := *c
	// Included files are already part of the lists.
	whole.Include = nil
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(encode(reflect.ValueOf(whole), "")); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// encode does the reverse of decoding: it returns v as a node, or nil if the file should not
// mention it. tag belongs to the struct field that holds v.
func encode(v reflect.Value, tag reflect.StructTag) *yaml.Node {
	// These types have a text that differs from their Go value.
	switch value := v.Interface().(type) {
	case Duration:
		return scalarNode("!!str", value.D().String())
	case Prefix:
		return scalarNode("!!str", value.String())
	case File:
		return scalarNode("!!str", value.Path)
	}
	switch v.Kind() { //nolint:exhaustive // the kinds of the types of this package
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		// A pointer to a string tells an empty text from an absent one.
		if v.Elem().Kind() == reflect.String {
			return scalarNode("!!str", v.Elem().String()) // may be empty, unlike a plain string
		}
		return encode(v.Elem(), tag)
	case reflect.Struct:
		return encodeStruct(v)
	case reflect.Slice:
		if v.Len() == 0 {
			return nil
		}
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			list.Content = append(list.Content, encode(v.Index(i), tag))
		}
		return list
	case reflect.String:
		if v.Len() == 0 {
			return nil
		}
		return scalarNode("!!str", v.String())
	case reflect.Int, reflect.Float64:
		// 0 may mean "not set" for a field whose range excludes it, and must then not be written.
		if v.IsZero() && tag.Get("min") != "" && !yamlfile.InRange(tag, 0) {
			return nil
		}
		return scalarNode("", fmt.Sprint(v.Interface()))
	}
	return scalarNode("", fmt.Sprint(v.Interface()))
}

// encodeStruct returns a mapping with the fields of v that the file would mention.
func encodeStruct(v reflect.Value) *yaml.Node {
	mapping := &yaml.Node{Kind: yaml.MappingNode}
	var alternatives []string
	if u, ok := reflect.TypeAssert[union](reflect.New(v.Type())); ok {
		alternatives = u.oneOf()
	}
	for _, f := range yamlfile.FieldsOf(v.Type()) {
		name := f.Tag.Get("yaml")
		field := v.FieldByIndex(f.Index)
		// Of alternative fields, only one may be written.
		if slices.Contains(alternatives, name) && field.IsZero() {
			continue
		}
		value := encode(field, f.Tag)
		// An empty struct is left out. An empty struct behind a pointer means something, so it is written.
		empty := value == nil || value.Kind == yaml.MappingNode && len(value.Content) == 0 && f.Type.Kind() != reflect.Pointer
		if !empty {
			mapping.Content = append(mapping.Content, scalarNode("!!str", name), value)
		}
	}
	return mapping
}

func scalarNode(tag, text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: strings.ReplaceAll(text, "${", "$${")}
}
