package file

import (
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/profiles"
)

// readStatusClasses reads a status, a range of statuses, or a list of both. It returns one class
// for each status or range. All classes have the given value of Failure.
func readStatusClasses(v value, failure bool) []profiles.ResponseClass {
	var classes []profiles.ResponseClass
	for _, item := range v.OneOrMore() {
		if s, ok := readStatus(item); ok {
			classes = append(classes, profiles.ResponseClass{Match: s, Failure: failure})
		}
	}
	return classes
}

// readStatus reads a status such as "404", or a range such as "500-599". If the value is invalid,
// it reports a mistake and returns false.
func readStatus(v value) (s profiles.Status, ok bool) {
	text, ok := v.Text()
	if !ok {
		return s, false
	}
	// A single status is a range from and to itself.
	low, high, ranged := strings.Cut(text, "-")
	if !ranged {
		high = low
	}
	var err, err2 error
	s.Min, err = strconv.Atoi(low)
	s.Max, err2 = strconv.Atoi(high)
	if err != nil || err2 != nil || s.Min > s.Max || checkLeaf(s) != "" {
		v.Failf("want a status such as 404, or a range such as 500-599, from 100 to 999")
		return s, false
	}
	return s, true
}

// readShortClasses reads the field "classes" of a route in the short form. It is a list of classes
// with conditions on responses.
func readShortClasses(v value) []profiles.ResponseClass {
	items := v.Members("an empty class: take it out")
	classes := make([]profiles.ResponseClass, 0, len(items))
	for _, item := range items {
		var c profiles.ResponseClass
		item.Read(fields{
			"match":   func(v value) { c.Match = readCondition(v, shortResponses()) },
			"failure": yamlfile.Boolean(&c.Failure),
		})
		item.Require("match", "which responses: {status: 500-599}")
		item.Require("failure", "true or false")
		classes = append(classes, c)
	}
	return classes
}

// shortResponses returns the functions that read conditions on responses in the short form,
// such as the fields status and grpc.
func shortResponses() conditions {
	c := conditions{invalid: fail}
	c.leaves = func(add func(profiles.Match)) fields {
		// Each field may be a list, of which one element must hold.
		return fields{
			"status": func(v value) {
				add(readAnyOf(v, func(v value) profiles.Match {
					if s, ok := readStatus(v); ok {
						return s
					}
					return nil
				}))
			},
			"grpc": func(v value) {
				add(readAnyOf(v, func(v value) profiles.Match {
					var s profiles.GRPCStatus
					// If v.Mistakes grows from here on, the status is invalid.
					wrong := len(v.Mistakes)
					into(&s, aGRPCStatus+", or a range such as 13-15", parseGRPCRange)(v)
					if len(v.Mistakes) > wrong {
						return nil
					}
					return s
				}))
			},
			"trailer": named(add, func(v value, name string, t profiles.StringMatch) profiles.Match {
				return validLeaf(v, c, profiles.Trailer{Name: name, Value: t})
			}),
		}
	}
	return c
}

// parseGRPCRange parses a gRPC status, or a range of statuses such as "13-15".
func parseGRPCRange(s string) (r profiles.GRPCStatus, ok bool) {
	low, high, ranged := strings.Cut(s, "-")
	// A single status is a range of one.
	if !ranged {
		high = low
	}
	var ok2 bool
	r.Min, ok = parseGRPCStatus(low)
	r.Max, ok2 = parseGRPCStatus(high)
	return r, ok && ok2 && r.Min <= r.Max
}

// aGRPCStatus describes what is wanted, for the text of a mistake.
const aGRPCStatus = "a status of gRPC from 0 to 16, or its name, such as UNAVAILABLE"

// parseGRPCStatus parses the number or the name of a gRPC status. Case does not matter.
func parseGRPCStatus(s string) (uint32, bool) {
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return uint32(n), n <= 16
	}
	// Package codes knows the names, but parses them only from JSON.
	var c codes.Code
	err := c.UnmarshalJSON([]byte(strconv.Quote(strings.ToUpper(s))))
	return uint32(c), err == nil
}
