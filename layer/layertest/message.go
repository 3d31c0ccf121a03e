package layertest

import (
	"io"
	"reflect"
)

// Request is a request of no particular protocol, for layers that take any.
type Request struct {
	ID     int
	Header map[string]string
	Body   io.ReadCloser // may be nil
}

// Response is a response of no particular protocol. Its Body makes
// layer.AtEnd hold for *Response as it does for *http.Response.
type Response struct {
	ID     int
	Header map[string]string
	Body   io.ReadCloser // may be nil
}

// newRequest and newResponse serve specs that leave their factories out.
func newRequest(i int) *Request {
	return &Request{ID: i, Header: map[string]string{"kind": "request"}}
}

func newResponse(i int) *Response {
	return &Response{ID: i, Header: map[string]string{"kind": "response"}}
}

// bodyField finds the field Body of a message that is a pointer to a struct,
// by the same rule as layer.AtEnd.
func bodyField[T any]() (index int, ok bool) {
	t := reflect.TypeFor[T]()
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return 0, false
	}
	f, ok := t.Elem().FieldByName("Body")
	if !ok || len(f.Index) != 1 || f.Type != reflect.TypeFor[io.ReadCloser]() {
		return 0, false
	}
	return f.Index[0], true
}

// bodyOf returns the body of message, or nil where it has none.
func bodyOf[T any](message T) io.ReadCloser {
	index, ok := bodyField[T]()
	v := reflect.ValueOf(message)
	if !ok || v.IsNil() {
		return nil
	}
	body, _ := reflect.TypeAssert[io.ReadCloser](v.Elem().Field(index))
	return body
}

// setBody replaces the body of message, where it can have one.
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

// mistaken names the first part of got that is not that of the i-th message, or
// returns "": of what tells one message from the next, nothing may be another,
// and no map or slice may be gone. Anything else may be added to and edited, as
// headers are.
func mistaken[T any](got T, made func(int) T, i int) string {
	want, again, next := made(i), made(i), made(i+1)
	t := reflect.TypeFor[T]()
	switch {
	case t.Kind() == reflect.Interface:
		return "" // it may have been wrapped
	case t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct:
		if isAnother(got, want, again, next) {
			return t.String()
		}
		return ""
	case reflect.ValueOf(got).IsNil():
		return t.String()
	}
	for i := range t.Elem().NumField() {
		f := t.Elem().Field(i)
		if !f.IsExported() || f.Name == "Body" {
			continue
		}
		field := func(m T) reflect.Value { return reflect.ValueOf(m).Elem().Field(i) }
		gone := isGone(field(got)) && !isGone(field(want))
		if gone || isAnother(field(got).Interface(), field(want).Interface(), field(again).Interface(), field(next).Interface()) {
			return f.Name
		}
	}
	return ""
}

// isAnother reports whether got differs from want, if the messages can be
// distinguished: the factory makes again equal to want, and next different.
func isAnother(got, want, again, next any) bool {
	return reflect.DeepEqual(want, again) && !reflect.DeepEqual(want, next) && !reflect.DeepEqual(got, want)
}

func isGone(v reflect.Value) bool {
	return (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.IsNil()
}

// changed names the first part of got that is not as in want, or returns "".
// What differs between two fresh messages of one factory (a function, a clock
// reading) says nothing and is passed over; so is the body.
func changed[T any](got, want, again T) string {
	t := reflect.TypeFor[T]()
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		if !reflect.DeepEqual(got, want) && reflect.DeepEqual(want, again) {
			return t.String()
		}
		return ""
	}
	g, w, a := reflect.ValueOf(got).Elem(), reflect.ValueOf(want).Elem(), reflect.ValueOf(again).Elem()
	for i := range t.Elem().NumField() {
		f := t.Elem().Field(i)
		if !f.IsExported() || f.Name == "Body" {
			continue
		}
		is, was := g.Field(i).Interface(), w.Field(i).Interface()
		if !reflect.DeepEqual(is, was) && reflect.DeepEqual(was, a.Field(i).Interface()) {
			return f.Name
		}
	}
	return ""
}
