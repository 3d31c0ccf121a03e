package profiles

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer"
)

// ResponseClass specifies whether matching responses are failures.
type ResponseClass struct {
	Match   Match // made of Status, GRPCStatus, Trailer, All, Any and Not
	Failure bool
}

// Validate returns the reason for which a Router would leave the class out, or nil.
func (c ResponseClass) Validate() error {
	_, err := compileResponse(c.Match, &compiler{drop: func(error) {}})
	return err
}

// classifier has the compiled classes of a route. The first that matches decides.
// Otherwise linkerd's rules apply:
//
//   - In a route without classes a gRPC request is classified by its gRPC status,
//     which may be in the trailers. Without a status it is a success.
//   - In a route without classes other requests fail with HTTP status 5xx.
//   - In a route with classes, the gRPC status decides, or else the HTTP status.
//
// A class that needs the trailers is undecided until the end of the response;
// until then the classes after it decide.
type classifier []responseClass

type responseClass struct {
	responseMatcher
	class layer.Class
}

// headerClass is the class of a response by its headers.
type headerClass struct {
	class layer.Class // Success or Failure
	open  bool        // a gRPC status in the trailers takes precedence

	undecided classifier // begins with the first undecided class; takes precedence
	status    int
}

func (c classifier) head(grpc bool, status int, header layer.Header) headerClass {
	h := headerClass{status: status}
	for i, k := range c {
		switch k.holds(response{status: status, header: header}) {
		case open:
			if h.undecided == nil {
				h.undecided = c[i:]
			}
		case yes:
			h.class = k.class
			return h
		case no:
		}
	}
	byStatus := classOf(status >= 500 && status <= 599)
	if len(c) == 0 && !grpc {
		h.class = byStatus
		return h
	}
	class, decided := grpcClass(header)
	switch {
	case decided:
		h.class = class
	case len(c) == 0:
		h.class, h.open = layer.Success, true
	default:
		h.class, h.open = byStatus, true
	}
	return h
}

// end returns the class of a response that ended without an error.
func (h headerClass) end(trailer layer.Header) layer.Class {
	// An undecided class implies a header without a gRPC status, and no other part
	// of the header decides.
	for _, k := range h.undecided {
		if k.holds(response{status: h.status, trailer: trailer}) == yes {
			return k.class
		}
	}
	if h.open {
		if class, ok := grpcClass(trailer); ok {
			return class
		}
	}
	return h.class
}

// isGRPC reports whether a request with this content type is a gRPC request.
func isGRPC(contentType string) bool {
	return strings.HasPrefix(contentType, "application/grpc")
}

// grpcClass classifies the gRPC status in header or trailer fields. As in linkerd,
// RESOURCE_EXHAUSTED is a success, because a retry would not help.
func grpcClass(fields layer.Header) (layer.Class, bool) {
	code, ok := grpcCode(fields)
	if !ok {
		return layer.Success, false
	}
	class := layer.ClassifyGRPC(code)
	return classOf(class.IsFailure() && class != layer.Throttled), true
}

// grpcCode returns the gRPC status in header or trailer fields. It ignores values
// that are not numbers.
func grpcCode(fields layer.Header) (uint32, bool) {
	text := fields.Get("grpc-status")
	if text == "" {
		return 0, false // the error of ParseUint takes two allocations
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

func compileClasses(classes []ResponseClass, c *compiler) classifier {
	var compiled classifier
	for i, k := range classes {
		m, err := compileResponse(k.Match, c)
		if err != nil {
			c.drop(fmt.Errorf("response class %d: %w", i, err))
			continue
		}
		compiled = append(compiled, responseClass{m, classOf(k.Failure)})
	}
	return compiled
}
