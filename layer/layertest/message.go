package layertest

import (
	"io"
	"reflect"

	"github.com/gotower/gotower/layer"
)

// Request is a request for layers that take any message type.
type Request struct {
	ID     int
	Header map[string]string
	Body   io.ReadCloser // may be nil
}

// Response is a response for layers that take any message type. layer.AtEnd
// finds its Body as it finds that of *http.Response.
type Response struct {
	ID     int
	Header map[string]string
	Body   io.ReadCloser // may be nil
}

// newRequest and newResponse are the default factories of a spec.
func newRequest(i int) *Request {
	return &Request{ID: i, Header: map[string]string{"kind": "request"}}
}

func newResponse(i int) *Response {
	return &Response{ID: i, Header: map[string]string{"kind": "response"}}
}

func isStructPointer[T any]() bool {
	t := reflect.TypeFor[T]()
	return t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct
}

// bodyField returns the index of the field Body of a message, see layer.HasBody.
func bodyField[T any]() (index int, ok bool) {
	if !layer.HasBody[T]() {
		return 0, false
	}
	f, _ := reflect.TypeFor[T]().Elem().FieldByName("Body")
	return f.Index[0], true
}

// bodyOf returns the body of message, or nil.
func bodyOf[T any](message T) io.ReadCloser {
	index, ok := bodyField[T]()
	v := reflect.ValueOf(message)
	if !ok || v.IsNil() {
		return nil
	}
	body, _ := reflect.TypeAssert[io.ReadCloser](v.Elem().Field(index))
	return body
}

// setBody replaces the body of a message whose type has one.
func setBody[T any](message T, body io.ReadCloser) {
	if index, ok := bodyField[T](); ok {
		field := reflect.ValueOf(message).Elem().Field(index)
		if body == nil {
			field.SetZero()
			return
		}
		field.Set(reflect.ValueOf(body))
	}
}

// mismatch returns the name of the first part of got that belongs to another message than the
// i-th, or "". Only parts that differ between messages are compared, because a layer may add to
// the others. No map or slice may be missing.
func mismatch[T any](got T, factory func(int) T, i int) string {
	if reflect.TypeFor[T]().Kind() == reflect.Interface {
		return "" // the layer may have wrapped it
	}
	return firstPart([]T{got, factory(i), factory(i), factory(i + 1)}, func(v []reflect.Value) bool {
		isNil := func(v reflect.Value) bool {
			return (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.IsNil()
		}
		return isNil(v[0]) && !isNil(v[1]) || !equal(v[0], v[1]) && equal(v[1], v[2]) && !equal(v[1], v[3])
	})
}

// changed returns the name of the first part of got that differs from want, or
// "". A part that also differs between want and again, two messages of one
// factory, is ignored. It may be a function or a time.
func changed[T any](got, want, again T) string {
	return firstPart([]T{got, want, again}, func(v []reflect.Value) bool {
		return !equal(v[0], v[1]) && equal(v[1], v[2])
	})
}

// firstPart returns the name of the first part of the messages for which
// differs holds, or "". The parts are the exported fields except Body, or the
// whole message if it is not a pointer to a struct.
func firstPart[T any](messages []T, differs func([]reflect.Value) bool) string {
	values := make([]reflect.Value, len(messages))
	for i, m := range messages {
		values[i] = reflect.ValueOf(&m).Elem()
	}
	t := reflect.TypeFor[T]()
	if !isStructPointer[T]() {
		if differs(values) {
			return t.String()
		}
		return ""
	}
	if values[0].IsNil() {
		return t.String()
	}
	fields := make([]reflect.Value, len(messages))
	for i := range t.Elem().NumField() {
		f := t.Elem().Field(i)
		if !f.IsExported() || f.Name == "Body" {
			continue
		}
		for j, v := range values {
			fields[j] = v.Elem().Field(i)
		}
		if differs(fields) {
			return f.Name
		}
	}
	return ""
}

func equal(a, b reflect.Value) bool { return reflect.DeepEqual(a.Interface(), b.Interface()) }
