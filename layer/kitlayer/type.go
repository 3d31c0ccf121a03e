package kitlayer

import (
	"fmt"
	"reflect"
)

// TypeError says that a message has another type than the one that it is
// translated to.
type TypeError struct {
	Message string // "request" or "response"
	Want    string // the type that was said
	Got     string // the type that came
}

// Error names both types, and which of the two messages it was.
func (e *TypeError) Error() string {
	return fmt.Sprintf("kitlayer: %s is a %s and not a %s: give both sides the same type", e.Message, e.Got, e.Want)
}

// as is v as a T. A nil, which has no type, is the zero value of every one.
func as[T any](message string, v any) (T, error) {
	t, ok := v.(T)
	if ok || v == nil {
		return t, nil
	}
	return t, &TypeError{Message: message, Want: reflect.TypeFor[T]().String(), Got: reflect.TypeOf(v).String()}
}
