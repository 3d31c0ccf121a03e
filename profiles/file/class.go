package file

import (
	"strconv"
	"strings"

	"github.com/gotower/gotower/profiles"
)

// statusClasses reads a status or a range, or a list of them, each a class.
func (v value) statusClasses(failure bool) []profiles.ResponseClass {
	var classes []profiles.ResponseClass
	for _, item := range v.oneOrMore() {
		if s, ok := item.status(); ok {
			classes = append(classes, profiles.ResponseClass{Match: s, Failure: failure})
		}
	}
	return classes
}

// status reads "404" or "500-599".
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

// shortClasses reads the long way to write classes: in their order, and with
// conditions that are trees.
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

func shortResponses() conditions {
	c := conditions{drop: fail}
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
			"trailer": named(add, func(v value, name string, t profiles.Text) profiles.Match {
				return v.leaf(c, profiles.Trailer{Name: name, Value: t})
			}),
		}
	}
	return c
}
