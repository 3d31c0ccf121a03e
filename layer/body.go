package layer

import (
	"io"
	"reflect"
)

// bodySeam finds the bodies of responses, where they have one.
type bodySeam struct {
	index int // of the field Body
	has   bool
}

func seamOf[Rsp any]() bodySeam {
	index, ok := bodyField(reflect.TypeFor[Rsp]())
	return bodySeam{index, ok}
}

// body returns the body of rsp, or nil.
func (s bodySeam) body(rsp any) io.ReadCloser {
	if !s.has {
		return nil
	}
	v := reflect.ValueOf(rsp)
	if v.IsNil() {
		return nil
	}
	body, _ := reflect.TypeAssert[io.ReadCloser](v.Elem().Field(s.index))
	return body
}

// observed returns the wrapper that all observers of a response's body share,
// if it has one. Until the response is handed on, a layer may put a reader of
// its own under the wrapper: so it costs no second one.
func (s bodySeam) observed(rsp any) *observedBody {
	switch b := s.body(rsp).(type) {
	case *observedBody:
		return b
	case *observedStream:
		return b.observedBody
	}
	return nil
}

// closeBody closes the body of rsp, and reports whether there was one.
func (s bodySeam) closeBody(rsp any) bool {
	body := s.body(rsp)
	if body == nil {
		return false
	}
	_ = body.Close()
	return true
}
