package template

import (
	"bytes"
	"encoding/json"

	"github.com/gotower/gotower/examples/tapctl/text"
)

// said is a string of an object, printed with escapes.
type said string

// String returns the printable form.
func (s said) String() string { return text.Clean(string(s)) }

// MarshalJSON returns the printable form in a list.
func (s said) MarshalJSON() ([]byte, error) { return marshal(string(s)) }

// fields are the fields of an object, with untrusted names such as labels.
type fields map[string]any

// MarshalJSON returns the printable form.
func (f fields) MarshalJSON() ([]byte, error) { return marshal(map[string]any(f)) }

func marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	return text.CleanJSON(data), err
}

// decode returns v converted through JSON.
func decode(v any) (any, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var object any
	if err := d.Decode(&object); err != nil {
		return nil, err
	}
	return typed(object), nil
}

// typed gives strings and numbers the types by which they print and compare
// well: 1000000 is not 1e+06.
func typed(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			v[key] = typed(value)
		}
		return fields(v)
	case []any:
		for i, value := range v {
			v[i] = typed(value)
		}
	case string:
		return said(v)
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return said(v)
	}
	return v
}
