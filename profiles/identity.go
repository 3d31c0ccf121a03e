package profiles

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
)

// appendIdentity appends a text that two routes share if and only if they are
// deeply equal. It is not for people. What fmt prints would not do: the
// conditions Path("/a") and PathPrefix("/a") print alike.
func (r Route) appendIdentity(b []byte) []byte {
	return appendValue(b, reflect.ValueOf(r))
}

func appendValue(b []byte, v reflect.Value) []byte {
	switch kind := v.Kind(); {
	case kind == reflect.String:
		return appendText(b, v.String())
	case kind == reflect.Bool:
		return strconv.AppendBool(b, v.Bool())
	case v.CanInt():
		return strconv.AppendInt(b, v.Int(), 36)
	case v.CanUint():
		return strconv.AppendUint(b, v.Uint(), 36)
	case v.CanFloat():
		return strconv.AppendFloat(b, v.Float(), 'x', -1, 64)
	case kind == reflect.Struct:
		b = append(b, '{')
		for i := range v.NumField() { //nolint:modernize // the iterator allocates
			b = append(appendValue(b, v.Field(i)), ' ')
		}
		return append(b, '}')
	case kind == reflect.Array:
		return appendElements(b, v)
	case kind == reflect.Slice, kind == reflect.Map, kind == reflect.Interface, kind == reflect.Pointer:
		return appendReference(b, v)
	}
	return fmt.Appendf(b, "%v", v) // a func or a channel, which is equal to itself alone
}

// appendReference appends a value that may be nil, which is not the same as an
// empty one.
func appendReference(b []byte, v reflect.Value) []byte {
	if v.IsNil() {
		return append(b, '-')
	}
	switch kind := v.Kind(); kind {
	case reflect.Interface:
		t := v.Elem().Type()
		b = appendText(appendText(b, t.PkgPath()), t.String())
		return appendValue(b, v.Elem())
	case reflect.Map:
		return appendMap(b, v)
	case reflect.Slice:
		return appendElements(b, v)
	default:
		return appendValue(append(b, '&'), v.Elem())
	}
}

func appendElements(b []byte, v reflect.Value) []byte {
	b = append(strconv.AppendInt(b, int64(v.Len()), 36), '[')
	for i := range v.Len() {
		b = append(appendValue(b, v.Index(i)), ' ')
	}
	return append(b, ']')
}

func appendMap(b []byte, v reflect.Value) []byte {
	if v.CanInterface() {
		// Labels are the one map that most routes have.
		if labels, ok := reflect.TypeAssert[map[string]string](v); ok {
			return appendLabels(b, labels)
		}
	}
	entries := make([]string, 0, v.Len())
	for i := v.MapRange(); i.Next(); {
		entries = append(entries, string(appendValue(appendValue(nil, i.Key()), i.Value())))
	}
	slices.Sort(entries)
	b = append(b, 'm')
	for _, e := range entries {
		b = appendText(b, e)
	}
	return append(b, ' ')
}

func appendLabels(b []byte, labels map[string]string) []byte {
	var few [8]string
	names := slices.AppendSeq(few[:0], maps.Keys(labels))
	slices.Sort(names)
	b = append(b, 'm')
	for _, name := range names {
		b = appendText(appendText(b, name), labels[name])
	}
	return append(b, ' ')
}

// appendText appends s with its length, so that it can have any byte.
func appendText(b []byte, s string) []byte {
	return append(append(strconv.AppendInt(b, int64(len(s)), 36), ':'), s...)
}
