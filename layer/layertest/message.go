package layertest

import (
	"io"
	"reflect"

	"github.com/gotower/gotower/layer"
)

// Request is a request for layers that work with any message type.
type Request struct {
	ID     int
	Header map[string]string
	Body   io.ReadCloser // may be nil
}

// Response is a response for layers that work with any message type. It has a field Body,
// as *http.Response does, so that layer.AtEnd observes the end of the body.
type Response struct {
	ID     int
	Header map[string]string
	Body   io.ReadCloser // may be nil
}

// newRequest and newResponse return the i-th message. They are the defaults of the functions
// Request and Response in a spec.
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

// bodyField returns the index of the field Body of the type T. It returns false if T has no
// body, see layer.HasBody.
func bodyField[T any]() (index int, ok bool) {
	if !layer.HasBody[T]() {
		return 0, false
	}
	f, _ := reflect.TypeFor[T]().Elem().FieldByName("Body")
	return f.Index[0], true
}

func bodyOf[T any](message T) io.ReadCloser {
	index, ok := bodyField[T]()
	v := reflect.ValueOf(message)
	if !ok || v.IsNil() {
		return nil
	}
	body, _ := reflect.TypeAssert[io.ReadCloser](v.Elem().Field(index))
	return body
}

// setBody replaces the body of message. It does nothing if the type T has no body.
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

// mismatch compares the message got with factory(i). It returns the name of the first part that
// differs, or "". It compares only the parts in which factory(i) and factory(i+1) differ, because
// these parts identify a message. A layer may change the other parts. But a map or slice that is
// nil only in got always counts as different.
func mismatch[T any](got T, factory func(int) T, i int) string {
	if reflect.TypeFor[T]().Kind() == reflect.Interface {
		return "" // the layer may have wrapped it
	}
	want := factory(i)
	if firstPart([]T{got, want}, func(v []reflect.Value) bool { return !equal(v[0], v[1]) }) == "" {
		return "" // the usual case, without two more messages
	}
	return firstPart([]T{got, want, factory(i), factory(i + 1)}, func(v []reflect.Value) bool {
		isNil := func(v reflect.Value) bool {
			return (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.IsNil()
		}
		return isNil(v[0]) && !isNil(v[1]) || !equal(v[0], v[1]) && equal(v[1], v[2]) && !equal(v[1], v[3])
	})
}

// changed returns the name of the first part of got that differs from want, or "". The arguments
// want and again are results of the same factory call, made twice. Parts that differ between them
// are ignored, such as functions and times.
func changed[T any](got, want, again T) string {
	return firstPart([]T{got, want, again}, func(v []reflect.Value) bool {
		return !equal(v[0], v[1]) && equal(v[1], v[2])
	})
}

// firstPart returns the name of the first part of a message for which the function differs returns
// true, or "". It calls differs for each part, with the values of the part in all messages. The
// parts of a pointer to a struct are its exported fields except Body. Any other message is one
// part.
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

func equal(a, b reflect.Value) bool {
	return a.Comparable() && b.Comparable() && a.Equal(b) || reflect.DeepEqual(a.Interface(), b.Interface())
}
