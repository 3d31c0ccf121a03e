package file

import (
	"math"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/profiles"
)

// conditions describes how conditions on requests, or on responses, are written in a file. It
// differs between the short form and a ServiceProfile.
type conditions struct {
	// leaves returns a function for each field other than all, any and not. The function
	// for a field calls add with the condition that it has read, or with nil if it leaves
	// the condition out.
	leaves func(add func(profiles.Match)) fields

	// allowEmpty specifies whether "all: []" and "any: []" are valid.
	allowEmpty bool

	// invalid reports an invalid condition, as a mistake in the short form or as a warning
	// in a ServiceProfile.
	invalid func(v value, reason string)
}

// warnLeftOut records the warning that a part of the file has no effect.
func warnLeftOut(v value, reason string) { v.Warnf("%s: left out", reason) }

// linkerdRequests describes the conditions on requests of a ServiceProfile.
func linkerdRequests() conditions {
	c := conditions{allowEmpty: true, invalid: warnLeftOut}
	// The fields are made for each condition, because they pass what they read to its own add.
	c.leaves = func(add func(profiles.Match)) fields {
		return fields{
			"method": func(v value) {
				// An empty text means no condition, as in linkerd.
				if method, ok := v.Text(); ok && method != "" {
					add(validLeaf(v, c, profiles.Method(strings.ToUpper(method)))) // the controller ignores case
				}
			},
			"pathRegex": func(v value) {
				if regex, ok := v.Text(); ok && regex != "" {
					add(validLeaf(v, c, profiles.Path(regex)))
				}
			},
		}
	}
	return c
}

// linkerdResponses describes the conditions on responses of a ServiceProfile.
func linkerdResponses() conditions {
	return conditions{invalid: warnLeftOut, leaves: func(add func(profiles.Match)) fields {
		return fields{"status": func(v value) {
			if s, ok := readLinkerdStatus(v); ok {
				add(s)
			} else {
				// A nil condition tells readCondition that the field was given, but left out.
				add(nil)
			}
		}}
	}}
}

// readCondition reads a condition. If a mapping has several fields, all of them must hold. Invalid
// fields are left out. If a mapping has only invalid fields, the result is nil. With several
// fields and c.allowEmpty, it is an empty All, which always holds, as in a Router.
func readCondition(v value, c conditions) profiles.Match {
	if v.TooDeep() {
		return nil
	}
	// parts are the valid conditions; given also counts those that were left out.
	var parts []profiles.Match
	given := 0
	// add is called for each field with a condition. m is nil if the condition has a mistake.
	add := func(m profiles.Match) {
		given++
		if m != nil {
			parts = append(parts, m)
		}
	}
	// The fields all, any and not are the same in every form.
	known := c.leaves(add)
	known["all"] = func(v value) {
		add(readMembers(v, c, func(ms []profiles.Match) profiles.Match { return profiles.All(ms) }))
	}
	known["any"] = func(v value) {
		add(readMembers(v, c, func(ms []profiles.Match) profiles.Match { return profiles.Any(ms) }))
	}
	known["not"] = func(v value) {
		if m := readCondition(v, c); m != nil {
			add(profiles.Not{Match: m})
		} else {
			add(nil)
		}
	}
	// If v.Mistakes grows from here on, one of the fields is invalid.
	wrong := len(v.Mistakes)
	v.Read(known)
	if given == 0 && len(v.Mistakes) == wrong {
		v.Failf("no condition: want one or more of %s", known.Names())
	}
	// Cases: one field, which is the condition; one invalid field, or several that are all invalid; or several fields,
	// of which the valid ones must hold.
	switch {
	case given == 1 && len(parts) == 1:
		return parts[0]
	case given <= 1, len(parts) == 0 && !c.allowEmpty:
		return nil
	}
	return profiles.All(parts)
}

// readMembers reads the members of a field "all" or "any". The function join combines the valid
// members to an All or Any. If no member is valid, the result is an empty All or Any if
// c.allowEmpty is true, and nil otherwise.
func readMembers(v value, c conditions, join func([]profiles.Match) profiles.Match) profiles.Match {
	var members []profiles.Match
	for _, item := range v.Members("an empty condition: take it out") {
		if m := readCondition(item, c); m != nil {
			members = append(members, m)
		}
	}
	// In linkerd, such a condition has a meaning: an empty All holds always, and an empty Any never.
	if len(members) == 0 && !c.allowEmpty {
		c.invalid(v, "no members")
		return nil
	}
	return join(members)
}

// validLeaf returns m if the condition m is valid. Otherwise it reports the reason by
// c.invalid, and returns nil.
func validLeaf(v value, c conditions, m profiles.Match) profiles.Match {
	if why := checkLeaf(m); why != "" {
		c.invalid(v, why)
		return nil
	}
	return m
}

// readLinkerdStatus reads a range of statuses in a ServiceProfile. If linkerd's controller rejects
// the range, it reports a mistake and returns false. If min or max is missing, it reports a warning
// and returns false, because linkerd's proxy ignores such a range.
func readLinkerdStatus(v value) (s profiles.Status, ok bool) {
	var low, high uint32
	// If v.Mistakes grows from here on, one of the fields is invalid.
	wrong := len(v.Mistakes)
	v.Read(fields{"min": count(&low, math.MaxUint32), "max": count(&high, math.MaxUint32)})
	// 0 means that the field is missing, which is another case.
	outside := func(n uint32) bool { return n != 0 && (n < 100 || n > 599) }
	switch {
	case len(v.Mistakes) > wrong:
		return s, false
	case outside(low), outside(high):
		v.Failf("%d to %d: want statuses from 100 to 599", low, high)
		return s, false
	case low == 0 || high == 0:
		warnLeftOut(v, "want both min and max")
		return s, false
	case low > high:
		v.Failf("max %d is below min %d", high, low)
		return s, false
	}
	return profiles.Status{Min: int(low), Max: int(high)}, true
}

// checkLeaf returns the reason why m is invalid, or "" if m is valid.
func checkLeaf(m profiles.Match) string {
	// Package profiles validates other conditions, but its errors about expressions are longer.
	var regex string
	switch m := m.(type) {
	case profiles.Path:
		regex = string(m)
	case profiles.Status, profiles.Trailer:
		return reason((profiles.ResponseClass{Match: m}).Validate())
	}
	if _, err := syntax.Parse(regex, syntax.Perl); err != nil {
		return regexReason(err)
	}
	return reason(profiles.ValidateMatch(m))
}

// regexReason returns the reason why an expression is invalid, for a mistake.
func regexReason(err error) string {
	return "want a regular expression: " + strings.TrimPrefix(err.Error(), "error parsing regexp: ")
}

// reason returns the text of err, or "" for nil.
func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// fail reports an invalid condition as a mistake, as the short form does.
func fail(v value, why string) { v.Failf("%s", why) }

// shortRequests returns the functions that read conditions on requests in the short form, such as
// the fields path and method. A field may have a list of values. Its condition then holds if it
// holds for one of the values.
func shortRequests() conditions {
	c := conditions{allowEmpty: true, invalid: fail}
	c.leaves = func(add func(profiles.Match)) fields {
		// texts returns a function that reads a text, or a list of texts of which one must hold, by the function leaf.
		texts := func(leaf func(value, string) profiles.Match) func(value) {
			return func(v value) {
				add(readAnyOf(v, func(v value) profiles.Match {
					if text, ok := v.Text(); ok {
						return leaf(v, text)
					}
					return nil
				}))
			}
		}
		return fields{
			"method":     texts(func(v value, s string) profiles.Match { return validLeaf(v, c, profiles.Method(strings.ToUpper(s))) }),
			"path":       texts(exactPath),
			"pathPrefix": texts(func(v value, s string) profiles.Match { return validLeaf(v, c, profiles.PathPrefix(s)) }),
			"pathRegex":  texts(pathRegex),
			"grpc":       func(v value) { add(readGRPC(v)) },
			"host": func(v value) {
				add(readAnyOf(v, func(v value) profiles.Match {
					if t := readStringMatch(v); t != nil {
						return validLeaf(v, c, profiles.Host{Value: t})
					}
					return nil
				}))
			},
			"header": named(add, func(v value, name string, t profiles.StringMatch) profiles.Match {
				if strings.EqualFold(name, "host") {
					v.Failf("the host of a request is not among its header fields: write host in place of header")
					return nil
				}
				return validLeaf(v, c, profiles.Header{Name: name, Value: t})
			}),
			"query": named(add, func(v value, name string, t profiles.StringMatch) profiles.Match {
				return validLeaf(v, c, profiles.Query{Name: name, Value: t})
			}),
		}
	}
	return c
}

// readAnyOf reads a condition by the function read. If v is a list, readAnyOf reads each
// member, and the resulting condition holds if one of them holds.
func readAnyOf(v value, read func(value) profiles.Match) profiles.Match {
	if v.Node.Kind != yaml.SequenceNode {
		return read(v)
	}
	var members profiles.Any
	for _, item := range v.Items() {
		if m := read(item); m != nil {
			members = append(members, m)
		}
	}
	if len(v.Node.Content) == 0 {
		v.Failf("an empty list holds for no request: take it out")
	}
	return members
}

// named returns a function that reads a mapping such as {x-version: v1, x-user: {prefix: a}}. For
// each name and value it makes a condition by the function leaf, and passes the condition to the
// function add. All conditions of the mapping must hold.
func named(add func(profiles.Match), leaf func(value, string, profiles.StringMatch) profiles.Match) func(value) {
	return func(v value) {
		v.Each(func(key, item value) {
			add(readAnyOf(item, func(v value) profiles.Match {
				if t := readStringMatch(v); t != nil {
					return leaf(v, key.Node.Value, t)
				}
				return nil
			}))
		})
	}
}

// readStringMatch reads a condition on a value. A text means [profiles.Exact]. A mapping such as
// {prefix: v1} specifies the kind of condition, and optionally ignoreCase. The result is nil after
// a mistake.
func readStringMatch(v value) (condition profiles.StringMatch) {
	if v.Node.Kind != yaml.MappingNode {
		if text, ok := v.Text(); ok {
			return profiles.Exact(text)
		}
		return nil
	}
	// conditions counts the kinds of condition in the mapping, of which there must be one.
	conditions, ignoreCase := 0, false
	// kind returns the function that reads a field whose text becomes the condition.
	kind := func(newMatch func(string) profiles.StringMatch) func(value) {
		return func(v value) {
			if text, ok := v.Text(); ok {
				condition = newMatch(text)
			}
			conditions++
		}
	}
	// If v.Mistakes grows from here on, one of the fields is invalid.
	oldMistakes := len(v.Mistakes)
	v.Read(fields{
		"exact":    kind(func(s string) profiles.StringMatch { return profiles.Exact(s) }),
		"prefix":   kind(func(s string) profiles.StringMatch { return profiles.Prefix(s) }),
		"suffix":   kind(func(s string) profiles.StringMatch { return profiles.Suffix(s) }),
		"contains": kind(func(s string) profiles.StringMatch { return profiles.Contains(s) }),
		"range": func(v value) {
			conditions++
			var r profiles.Range
			into(&r, "whole numbers such as 10-20", parseRange)(v)
			condition = r
		},
		"ignoreCase": yamlfile.Boolean(&ignoreCase),
		"regex": func(v value) {
			// The expression is checked by itself, because Regex puts a group around it.
			kind(func(s string) profiles.StringMatch { return profiles.Regex(s) })(v)
			checkRegex(v)
		},
		"present": func(v value) {
			var present bool
			yamlfile.Boolean(&present)(v)
			if !present {
				v.Failf("want true; for an absent field, put the condition below not")
			}
			condition = profiles.AnyValue{}
			conditions++
		},
	})
	if conditions != 1 && len(v.Mistakes) == oldMistakes {
		v.Failf("want a text, or one of exact, prefix, suffix, contains, regex, range and present")
	}
	switch {
	case len(v.Mistakes) > oldMistakes:
		return nil
	case ignoreCase:
		return profiles.IgnoreCase{Value: condition}
	}
	return condition
}

// parseRange parses a range of numbers such as "10-20" or "-5--1", or a single number.
// A single number is a range from and to itself.
func parseRange(s string) (r profiles.Range, ok bool) {
	low, high := s, s
	if i := strings.IndexByte(s[min(1, len(s)):], '-'); i >= 0 { // a '-' at the start is the sign
		low, high = s[:i+1], s[i+2:]
	}
	var err, err2 error
	r.Min, err = strconv.ParseInt(low, 10, 64)
	r.Max, err2 = strconv.ParseInt(high, 10, 64)
	return r, err == nil && err2 == nil && r.Min <= r.Max
}

// exactPath returns a condition that holds only for the given path. The condition is a
// regular expression in which the path is quoted.
func exactPath(v value, path string) profiles.Match {
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#") {
		v.Failf("want a path that begins with '/', without a query; pathRegex takes regular expressions")
		// QuoteMeta makes the path a regular expression that matches only itself.
		return nil
	}
	return validLeaf(v, conditions{invalid: fail}, profiles.Path("^"+regexp.QuoteMeta(path)+"$"))
}

// pathRegex returns a condition that holds if regex matches the whole path. It puts regex in a
// group, so that "/a|/b" matches both paths. linkerd adds no group.
func pathRegex(v value, regex string) profiles.Match {
	if regex == "" {
		v.Failf("want a regular expression for the whole path")
	}
	if regex == "" || !checkRegex(v) {
		return nil
	}
	return validLeaf(v, conditions{invalid: fail}, profiles.Path("^(?:"+regex+")$"))
}

// checkRegex reports whether v has a valid regular expression, and otherwise reports a mistake at
// v. It must be called before a group is put around the expression, because "(?:" + "a)|(b" + ")"
// is valid.
func checkRegex(v value) bool {
	if _, err := syntax.Parse(v.Node.Value, syntax.Perl); err != nil {
		v.Failf("%s", regexReason(err))
		return false
	}
	return true
}

// readGRPC reads a condition on the service and the method of a gRPC request.
func readGRPC(v value) profiles.Match {
	var g profiles.GRPC
	wrong := len(v.Mistakes)
	v.Read(fields{"service": word(&g.Service), "method": word(&g.Method)})
	if len(v.Mistakes) > wrong {
		return nil
	}
	return validLeaf(v, conditions{invalid: fail}, g)
}
