package template

import (
	"bytes"
	"encoding/json"

	"github.com/gotower/gotower/examples/tapctl/text"
)

// cleanString is a string value of an object. It is printed with unprintable characters
// escaped.
type cleanString string

// String returns the string with unprintable characters escaped.
func (s cleanString) String() string { return text.Clean(string(s)) }

// MarshalJSON returns the string as JSON with unprintable characters escaped. It is used
// when a whole list or object is printed.
func (s cleanString) MarshalJSON() ([]byte, error) { return marshal(string(s)) }

// fields holds an object's fields by name. Names are printed with unprintable characters escaped,
// because they may come from the network, such as the keys of labels.
type fields map[string]any

// MarshalJSON returns the object as JSON with unprintable characters escaped.
func (f fields) MarshalJSON() ([]byte, error) { return marshal(map[string]any(f)) }

func marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	return text.CleanJSON(data), err
}

// decode converts v to maps, lists and values under their JSON names, which templates use.
// Strings become cleanString, and objects become fields (see typed).
func decode(v any) (any, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	// Numbers stay exact, because large ones would be printed with an exponent.
	d.UseNumber()
	var object any
	if err := d.Decode(&object); err != nil {
		return nil, err
	}
	return typed(object), nil
}

// typed converts v, a decoded JSON value, to the types that templates print. Strings become
// cleanString and objects become fields. Numbers become int64 or float64, so that 1000000
// is not printed as 1e+06.
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
	// Most numbers are integers.
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
