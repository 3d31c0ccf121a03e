package template

import (
	"bytes"
	"encoding/json"

	"github.com/gotower/gotower/examples/tapctl/text"
)

// cleanString is a string of an object. It is printed with escapes.
type cleanString string

// String returns the printable form.
func (s cleanString) String() string { return text.Clean(string(s)) }

// MarshalJSON returns the printable form in a list.
func (s cleanString) MarshalJSON() ([]byte, error) { return marshal(string(s)) }

// fields has the fields of an object. Their names, such as those of labels, are not
// trusted.
type fields map[string]any

// MarshalJSON returns the printable form.
func (f fields) MarshalJSON() ([]byte, error) { return marshal(map[string]any(f)) }

func marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	return text.CleanJSON(data), err
}

// decode converts v to JSON, and returns the decoded JSON with the types of typed.
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

// typed returns v with strings as cleanString, objects as fields, and numbers as int64 or
// float64, so that 1000000 is not printed as 1e+06.
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
		return cleanString(v)
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return cleanString(v)
	}
	return v
}
