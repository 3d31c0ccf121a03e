package template

import (
	"bytes"
	"encoding/json"

	"github.com/gotower/gotower/examples/tapctl/text"
)

// said is a string of an object. It compares as one; where it is printed, alone
// or in JSON, only what is printable is.
type said string

// String returns it as it is printed.
func (s said) String() string { return text.Clean(string(s)) }

// MarshalJSON returns it as it is printed in a list.
func (s said) MarshalJSON() ([]byte, error) { return marshal(string(s)) }

// fields are those of an object, whose names may be anybody's as well: labels.
type fields map[string]any

// MarshalJSON returns them as they are printed.
func (f fields) MarshalJSON() ([]byte, error) { return marshal(map[string]any(f)) }

func marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	return text.CleanJSON(data), err
}

// decode returns v as it is in JSON.
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
