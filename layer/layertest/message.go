package layertest

import (
	"io"
	"maps"
	"reflect"

	"github.com/gotower/gotower/layer"
)

// Request is a request for layers that work with any message type.
type Request struct {
	ID     int
	Header map[string]string
	Body   io.ReadCloser // may be nil
}

// Response is a response for layers that work with any message type. Like *http.Response, it
// contains a field Body, so that layer.AtEnd observes the end of the body.
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

// isStructPointer reports whether T is a pointer to a struct, whose fields the checks can compare.
func isStructPointer[T any]() bool {
	t := reflect.TypeFor[T]()
	return t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct
}

// messages makes, reads and compares the messages of the type T, which are a subject's requests
// or responses.
type messages[T any] struct {
	factory func(i int) T
	body    int   // the index of the field Body; -1 if T has no body, see layer.HasBody
	parts   []int // if T is a pointer to a struct, the indices of its exported fields except Body
}

// messagesOf returns the messages of the type T, which factory makes. It finds the fields by
// reflection.
func messagesOf[T any](factory func(i int) T) messages[T] {
	m := messages[T]{factory: factory, body: -1}
	if !isStructPointer[T]() {
		return m
	}
	t := reflect.TypeFor[T]().Elem()
	for i := range t.NumField() {
		switch f := t.Field(i); {
		case f.Name == "Body" && layer.HasBody[T]():
			m.body = i
		case f.IsExported() && f.Name != "Body":
			m.parts = append(m.parts, i)
		}
	}
	return m
}

func (m messages[T]) hasBody() bool { return m.body >= 0 }

// bodyOf returns message's body. It returns nil if there is none, and if message is nil.
func (m messages[T]) bodyOf(message T) io.ReadCloser {
	if !m.hasBody() {
		return nil
	}
	v := reflect.ValueOf(message)
	if v.IsNil() {
		return nil
	}
	body, _ := reflect.TypeAssert[io.ReadCloser](v.Elem().Field(m.body))
	return body
}

// setBody replaces message's body, if type T has one.
func (m messages[T]) setBody(message T, body io.ReadCloser) {
	if !m.hasBody() {
		return
	}
	field := reflect.ValueOf(message).Elem().Field(m.body)
	if body == nil {
		field.SetZero()
		return
	}
	field.Set(reflect.ValueOf(body))
}

// mismatch compares the message actual with the i-th message. It returns the name of the first part that
// differs, or "". It compares only the parts in which factory(i) and factory(i+1) differ, because
// these parts identify a message. A layer may change the other parts. But a map or slice that is
// nil only in actual always counts as different.
func (m messages[T]) mismatch(actual T, i int) string {
	if reflect.TypeFor[T]().Kind() == reflect.Interface {
		return "" // the layer may have wrapped it
	}
	want := m.factory(i)
	if m.equal(actual, want) {
		return ""
	}
	// v holds one part's values, in these four messages.
	return m.firstPart([]T{actual, want, m.factory(i), m.factory(i + 1)}, func(v []reflect.Value) bool {
		isNil := func(v reflect.Value) bool {
			return (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.IsNil()
		}
		return isNil(v[0]) && !isNil(v[1]) || !equal(v[0], v[1]) && equal(v[1], v[2]) && !equal(v[1], v[3])
	})
}

// changed compares the message actual with factory(i). It returns the name of the first part that
// differs, or "". It ignores parts that differ between two messages factory(i), such as functions
// and times.
func (m messages[T]) changed(actual T, i int) string {
	want := m.factory(i)
	if m.equal(actual, want) {
		return ""
	}
	// v holds one part's values, in these three messages.
	return m.firstPart([]T{actual, want, m.factory(i)}, func(v []reflect.Value) bool {
		return !equal(v[0], v[1]) && equal(v[1], v[2])
	})
}

// equal reports whether all parts of actual and want, the exported fields apart from the body, are
// equal.
func (m messages[T]) equal(actual, want T) bool {
	return m.firstPart([]T{actual, want}, func(v []reflect.Value) bool { return !equal(v[0], v[1]) }) == ""
}

// firstPart returns the name of the first message part for which differs returns true, or "". It
// calls differs for each part, with its values in all messages. A message that is not a pointer to
// a struct is one part.
func (m messages[T]) firstPart(messages []T, differs func([]reflect.Value) bool) string {
	t := reflect.TypeFor[T]()
	values := make([]reflect.Value, len(messages))
	for i := range messages {
		// Each value keeps its type T, even if T is an interface, because it comes from a pointer.
		values[i] = reflect.ValueOf(&messages[i]).Elem()
	}
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
	for _, part := range m.parts {
		for j, v := range values {
			fields[j] = v.Elem().Field(part)
		}
		if differs(fields) {
			return t.Elem().Field(part).Name
		}
	}
	return ""
}

// equal reports whether two fields of a message are equal. A nil map is not an empty one.
func equal(a, b reflect.Value) bool {
	if a.Kind() == reflect.Map && a.Len() == b.Len() && a.IsNil() == b.IsNil() {
		if a.Len() == 0 {
			return true
		}
		if x, ok := reflect.TypeAssert[map[string]string](a); ok { // as in Request, without the cost of DeepEqual
			y, _ := reflect.TypeAssert[map[string]string](b)
			return maps.Equal(x, y)
		}
	}
	return a.Comparable() && b.Comparable() && a.Equal(b) || reflect.DeepEqual(a.Interface(), b.Interface())
}
