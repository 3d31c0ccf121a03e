package file

import (
	"strconv"
	"strings"

	"github.com/gotower/gotower/profiles"
)

// statusClasses reads a status, a range, or a list of these. The result has one class for each.
func (v value) statusClasses(failure bool) []profiles.ResponseClass {
	var classes []profiles.ResponseClass
	for _, item := range v.oneOrMore() {
		if s, ok := item.status(); ok {
			classes = append(classes, profiles.ResponseClass{Match: s, Failure: failure})
		}
	}
	return classes
}

// status reads a status such as "404", or a range such as "500-599".
func (v value) status() (s profiles.Status, ok bool) {
	text, ok := v.text()
	if !ok {
		return s, false
	}
	low, high, ranged := strings.Cut(text, "-")
	if !ranged {
		high = low
	}
	var err, err2 error
	s.Min, err = strconv.Atoi(low)
	s.Max, err2 = strconv.Atoi(high)
	if err != nil || err2 != nil || s.Min > s.Max || checkLeaf(s) != "" {
		v.failf("want a status such as 404, or a range such as 500-599, from 100 to 999")
		return s, false
	}
	return s, true
}

// shortClasses reads a list of classes with conditions.
func (v value) shortClasses() []profiles.ResponseClass {
	var classes []profiles.ResponseClass
	for _, item := range v.items() {
		if item.isNull() {
			item.failf("an empty class: take it out")
			continue
		}
		var c profiles.ResponseClass
		item.read(fields{
			"match":   func(v value) { c.Match = v.condition(shortResponses()) },
			"failure": boolean(&c.Failure),
		})
		item.require("match", "which responses: {status: 500-599}")
		item.require("failure", "true or false")
		classes = append(classes, c)
	}
	return classes
}

// shortResponses returns the syntax of conditions on responses in the short form.
func shortResponses() conditions {
	c := conditions{invalid: fail}
	c.leaves = func(add func(profiles.Match)) fields {
		return fields{
			"status": func(v value) {
				add(v.anyOf(func(v value) profiles.Match {
					if s, ok := v.status(); ok {
						return s
					}
					return nil
				}))
			},
			"grpc": func(v value) {
				add(v.anyOf(func(v value) profiles.Match {
					var s profiles.GRPCStatus
					wrong := len(v.wrong)
					into(&s, aGRPCStatus+", or a range such as 13-15", parseGRPCRange)(v)
					if len(v.wrong) > wrong {
						return nil
					}
					return s
				}))
			},
			"trailer": named(add, func(v value, name string, t profiles.StringMatch) profiles.Match {
				return v.leaf(c, profiles.Trailer{Name: name, Value: t})
			}),
		}
	}
	return c
}

// parseGRPCRange parses a gRPC status or a range such as "13-15".
func parseGRPCRange(s string) (r profiles.GRPCStatus, ok bool) {
	low, high, ranged := strings.Cut(s, "-")
	if !ranged {
		high = low
	}
	var ok2 bool
	r.Min, ok = parseGRPCStatus(low)
	r.Max, ok2 = parseGRPCStatus(high)
	return r, ok && ok2 && r.Min <= r.Max
}

const aGRPCStatus = "a status of gRPC from 0 to 16, or its name, such as UNAVAILABLE"

// parseGRPCStatus parses the number or the name of a gRPC status. Case does not matter.
func parseGRPCStatus(s string) (uint32, bool) {
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return uint32(n), n <= 16
	}
	for n, name := range grpcNames() {
		if strings.EqualFold(s, name) {
			return uint32(n), true
		}
	}
	return 0, false
}

// grpcNames returns the names of the gRPC status codes by their number.
func grpcNames() []string {
	return []string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
		"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
	}
}
