package profiles

import (
	"strconv"

	"github.com/gotower/gotower/layer"
)

// ResponseClass specifies whether the responses that satisfy the condition Match are failures.
type ResponseClass struct {
	Match   Match // a condition of Status, GRPCStatus, Trailer, All, Any and Not
	Failure bool  // whether the responses are failures
}

// Validate returns the reason why a Router would ignore the class, or nil if the class is
// valid.
func (c ResponseClass) Validate() error {
	_, err := compileResponse(c.Match, func(error) {})
	return err
}

// classifier holds a route's compiled ResponseClasses. The first class whose condition holds for a
// response determines whether the response is a failure. If no condition holds, linkerd's rules
// apply:
//
//   - If the route defines no classes, the gRPC status, which may be in the trailers, determines
//     whether a gRPC request fails. Without a gRPC status it is a success.
//   - If the route defines no classes, any other request fails if its HTTP status is 5xx.
//   - If the route defines classes, the gRPC status determines whether a request fails. Without a gRPC
//     status, it fails if its HTTP status is 5xx.
//
// A condition that needs the trailers cannot be evaluated before the end of the response. Until
// then, the class is skipped, and the first later class whose condition holds applies.
type classifier []responseClass

// responseClass is a compiled ResponseClass: the class of responses for which the condition holds.
type responseClass struct {
	responseMatcher
	class layer.Class
}

// headerClass is the class of a response according to its status and headers. In two cases the
// trailers can still change the class: see the fields open and undecided.
type headerClass struct {
	class layer.Class // Success or Failure
	open  bool        // whether a gRPC status in the trailers takes precedence over class

	undecided classifier // the classes from the first undecided one on; they take precedence over class
	status    int        // the HTTP status of the response
}

// head classifies a response by its status and headers. grpc tells whether the request is a gRPC request.
func (c classifier) head(grpc bool, status int, header layer.Header) headerClass {
	h := headerClass{status: status}
	for i, k := range c {
		switch k.holds(response{status: status, header: header}) {
		case open:
			if h.undecided == nil {
				// The trailers decide about this class first, and then about the later ones.
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
	// A gRPC request without classes, or any request of a route with classes: a gRPC status decides.
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

// end returns the final class of a response that ended without an error. trailer holds its
// trailers.
func (h headerClass) end(trailer layer.Header) layer.Class {
	// If a class is undecided, the header contains no gRPC status, and nothing else in it is
	// used.
	// The classes are tried again from the first open one on, now with the trailers.
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

// grpcClass returns the class for the gRPC status in fields, which are headers or trailers. If
// there is none, it returns false. RESOURCE_EXHAUSTED is a success, as in linkerd, because a
// retry would not help.
func grpcClass(fields layer.Header) (layer.Class, bool) {
	code, ok := grpcCode(fields)
	if !ok {
		return layer.Success, false
	}
	class := layer.ClassifyGRPC(code)
	return classOf(class.IsFailure() && class != layer.Throttled), true
}

// grpcCode returns the gRPC status in fields, which are headers or trailers. It returns
// false if the status is missing or not a number.
func grpcCode(fields layer.Header) (uint32, bool) {
	text := fields.Get("Grpc-Status")
	if text == "" {
		return 0, false // the error of ParseUint takes two allocations
	}
	code, err := strconv.ParseUint(text, 10, 32)
	return uint32(code), err == nil
}

// classOf returns Failure or Success.
func classOf(failure bool) layer.Class {
	if failure {
		return layer.Failure
	}
	return layer.Success
}

// compileClasses compiles the valid classes, and adds the mistakes in the others to problems.
func compileClasses(classes []ResponseClass, problems *FieldErrors) classifier {
	compiled := make(classifier, 0, len(classes))
	i := 0
	invalid := func(err error) { problems.add(item("Classes", i), err) }
	for ; i < len(classes); i++ {
		k := classes[i]
		if m, err := compileResponse(k.Match, invalid); err != nil {
			invalid(err)
		} else {
			compiled = append(compiled, responseClass{m, classOf(k.Failure)})
		}
	}
	return compiled
}
