package profiles

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer"
)

// ResponseClass says of the responses that match whether they are failures.
type ResponseClass struct {
	Match   Match // made of Status, All, Any and Not
	Failure bool
}

// Validate says why a Router would leave the class out, or returns nil.
func (c ResponseClass) Validate() error {
	_, err := compileStatus(c.Match, func(error) {})
	return err
}

// classifier is the classes of one route, compiled.
//
// Where no class matches, or there is none, linkerd's rules hold. A route
// without classes: a gRPC request is judged by the status of its response,
// which may come as late as in the trailers (none at all is a success), any
// other by whether the HTTP status is 5xx. A route with classes of which none
// matches: by the gRPC status if there is one, else by the HTTP status.
type classifier []statusClass

type statusClass struct {
	holds func(status int) bool
	class layer.Class
}

// verdict is what the head of a response says of its class.
type verdict struct {
	class layer.Class // Success or Failure
	open  bool        // a gRPC status in the trailers decides, if there is one
}

func (c classifier) head(grpc bool, status int, header layer.Fields) verdict {
	for _, k := range c {
		if k.holds(status) {
			return verdict{class: k.class}
		}
	}
	byStatus := classOf(status >= 500 && status <= 599)
	if len(c) == 0 && !grpc {
		return verdict{class: byStatus}
	}
	if class, ok := grpcClass(header); ok {
		return verdict{class: class}
	}
	if len(c) == 0 {
		return verdict{class: layer.Success, open: true}
	}
	return verdict{class: byStatus, open: true}
}

// end is the class of a response that came whole.
func (v verdict) end(trailer layer.Fields) layer.Class {
	if v.open {
		if class, ok := grpcClass(trailer); ok {
			return class
		}
	}
	return v.class
}

// isGRPC reports whether a request with this content type is a gRPC one.
func isGRPC(contentType string) bool {
	return strings.HasPrefix(contentType, "application/grpc")
}

// grpcClass reads the gRPC status from header or trailer fields. One that is
// not a number is as good as none. RESOURCE_EXHAUSTED is a success, as in
// linkerd's proxy: no retry would help.
func grpcClass(fields layer.Fields) (layer.Class, bool) {
	code, err := strconv.ParseUint(fields.Get("grpc-status"), 10, 32)
	if err != nil {
		return layer.Success, false
	}
	class := layer.ClassOfGRPC(uint32(code))
	return classOf(class.Failed() && class != layer.Throttled), true
}

func classOf(failure bool) layer.Class {
	if failure {
		return layer.Failure
	}
	return layer.Success
}

func compileClasses(classes []ResponseClass, drop func(error)) classifier {
	var c classifier
	for i, k := range classes {
		holds, err := compileStatus(k.Match, drop)
		if err != nil {
			drop(fmt.Errorf("response class %d: %w", i, err))
			continue
		}
		c = append(c, statusClass{holds, classOf(k.Failure)})
	}
	return c
}

// compileStatus is compileMatch for responses. All and Any without a valid
// member are invalid here, which is how linkerd has it.
func compileStatus(m Match, drop func(error)) (func(status int) bool, error) {
	switch m := m.(type) {
	case nil:
		return nil, errNoCondition
	case All:
		return compileStatuses(m, false, drop)
	case Any:
		return compileStatuses(m, true, drop)
	case Not:
		f, err := compileStatus(m.Match, drop)
		if err != nil {
			return nil, fmt.Errorf("not: %w", err)
		}
		return func(status int) bool { return !f(status) }, nil
	case Status:
		if m.Min < 100 || m.Min > 999 || m.Max < 100 || m.Max > 999 {
			return nil, fmt.Errorf("status %d to %d is not within 100 to 999", m.Min, m.Max)
		}
		return func(status int) bool { return m.Min <= status && status <= m.Max }, nil
	}
	return nil, fmt.Errorf("%T is no condition on a response", m)
}

// compileStatuses joins members: the first whose answer is decisive ends it.
func compileStatuses(members []Match, decisive bool, drop func(error)) (func(status int) bool, error) {
	var fs []func(int) bool
	for _, m := range members {
		f, err := compileStatus(m, drop)
		if err != nil {
			drop(fmt.Errorf("member of a response class: %w", err))
			continue
		}
		fs = append(fs, f)
	}
	if len(fs) == 0 {
		return nil, errors.New("no valid member")
	}
	return func(status int) bool {
		for _, f := range fs {
			if f(status) == decisive {
				return decisive
			}
		}
		return !decisive
	}, nil
}
