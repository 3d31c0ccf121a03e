package config

import (
	"bytes"
	"reflect"
)

// Equal reports whether r and other are configured in the same way, with their files and the service that
// counts their requests. A reload compares all routes, for which reflect.DeepEqual takes several times as long.
func (r *Route) Equal(other *Route) bool {
	return equal(reflect.ValueOf(r), reflect.ValueOf(other)) && equal(reflect.ValueOf(r.limiter), reflect.ValueOf(other.limiter))
}

// equal compares two values of one type of this package. It ignores unexported fields, because they are
// computed from the others.
func equal(a, b reflect.Value) bool {
	switch a.Kind() { //nolint:exhaustive // the kinds of the types of this package
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() || a.Pointer() == b.Pointer() {
			return a.Pointer() == b.Pointer()
		}
		return equal(a.Elem(), b.Elem())
	case reflect.Slice:
		if a.Type().Elem().Kind() == reflect.Uint8 {
			return bytes.Equal(a.Bytes(), b.Bytes())
		}
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !equal(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Struct:
		if a.Type() == reflect.TypeFor[Prefix]() { // its fields are those of package netip
			return a.Equal(b)
		}
		for i := range a.NumField() {
			if field := a.Field(i); field.CanInterface() && !equal(field, b.Field(i)) {
				return false
			}
		}
		return true
	}
	return a.Equal(b)
}
