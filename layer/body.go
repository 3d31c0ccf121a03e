package layer

import (
	"io"
	"reflect"
)

// bodySeam finds the bodies of requests or responses, where they have one that
// [AtEnd] would know. It is looked up when a layer is made.
type bodySeam[T any] struct {
	index int // of the field Body
	has   bool
}

func seamOf[T any]() bodySeam[T] {
	index, ok := bodyField(reflect.TypeFor[T]())
	return bodySeam[T]{index, ok}
}

// body returns the body of message, or nil.
func (s bodySeam[T]) body(message T) io.ReadCloser {
	if !s.has {
		return nil
	}
	v := reflect.ValueOf(message)
	if v.IsNil() {
		return nil
	}
	body, _ := reflect.TypeAssert[io.ReadCloser](v.Elem().Field(s.index))
	return body
}

// observed returns the wrapper that all observers of a response's body share,
// if it has one. Until the response is handed on, a layer may put a reader of
// its own under the wrapper: so it costs no second one.
func (s bodySeam[T]) observed(rsp T) *observedBody {
	switch b := s.body(rsp).(type) {
	case *observedBody:
		return b
	case *observedStream:
		return b.observedBody
	case *observedConn:
		return b.observedBody
	}
	return nil
}

// closeBody closes the body of message, and reports whether there was one.
func (s bodySeam[T]) closeBody(message T) bool {
	body := s.body(message)
	if body == nil {
		return false
	}
	_ = body.Close()
	return true
}
