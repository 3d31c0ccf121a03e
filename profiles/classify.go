package profiles

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer"
)

// ResponseClass says of the responses that match whether they are failures.
type ResponseClass struct {
	Match   Match // made of Status, GRPCStatus, Trailer, All, Any and Not
	Failure bool
}

// Validate says why a Router would leave the class out, or returns nil.
func (c ResponseClass) Validate() error {
	_, err := compileResponse(c.Match, func(error) {})
	return err
}

// classifier is the classes of one route, compiled.
//
// Where no class matches, or there is none, linkerd's rules hold. A route
// without classes: a gRPC request is judged by the status of its response,
// which may come as late as in the trailers (none at all is a success), any
// other by whether the HTTP status is 5xx. A route with classes of which none
// matches: by the gRPC status if there is one, else by the HTTP status.
//
// A class of which only the trailers say whether it matches is open until the
// end of the response; until then those after it decide.
type classifier []responseClass

type responseClass struct {
	responseMatcher
	class layer.Class
}

// verdict is what the head of a response says of its class.
type verdict struct {
	class layer.Class // Success or Failure
	open  bool        // a gRPC status in the trailers decides, if there is one

	// What the trailers say comes first, where it is asked for.
	undecided classifier // from the first class that is not decided
	status    int
}

func (c classifier) head(grpc bool, status int, header layer.Header) verdict {
	v := verdict{status: status}
	for i, k := range c {
		switch k.holds(response{status: status, header: header}) {
		case open:
			if v.undecided == nil {
				v.undecided = c[i:]
			}
		case yes:
			v.class = k.class
			return v
		case no:
		}
	}
	byStatus := classOf(status >= 500 && status <= 599)
	if len(c) == 0 && !grpc {
		v.class = byStatus
		return v
	}
	class, decided := grpcClass(header)
	switch {
	case decided:
		v.class = class
	case len(c) == 0:
		v.class, v.open = layer.Success, true
	default:
		v.class, v.open = byStatus, true
	}
	return v
}

// awaits reports whether the trailers may change the class.
func (v verdict) awaits() bool { return v.open || v.undecided != nil }

// end is the class of a response that came whole.
func (v verdict) end(trailer layer.Header) layer.Class {
	// With a class undecided there is no gRPC status in the header, and nothing
	// else of it is asked for.
	for _, k := range v.undecided {
		if k.holds(response{status: v.status, trailer: trailer}) == yes {
			return k.class
		}
	}
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

// grpcClass reads the gRPC status from header or trailer fields.
// RESOURCE_EXHAUSTED is a success, as in linkerd's proxy: no retry would help.
func grpcClass(fields layer.Header) (layer.Class, bool) {
	code, ok := grpcCode(fields)
	if !ok {
		return layer.Success, false
	}
	class := layer.ClassifyGRPC(code)
	return classOf(class.IsFailure() && class != layer.Throttled), true
}

// grpcCode is the gRPC status in header or trailer fields. One that is not a
// number is as good as none.
func grpcCode(fields layer.Header) (uint32, bool) {
	text := fields.Get("grpc-status")
	if text == "" {
		return 0, false // to be told so by ParseUint takes two allocations
	}
	code, err := strconv.ParseUint(text, 10, 32)
	return uint32(code), err == nil
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
		m, err := compileResponse(k.Match, drop)
		if err != nil {
			drop(fmt.Errorf("response class %d: %w", i, err))
			continue
		}
		c = append(c, responseClass{m, classOf(k.Failure)})
	}
	return c
}
