package file

import (
	"math"
	"regexp"
	"regexp/syntax"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/profiles"
)

// conditions is the syntax of conditions on requests or responses in one format.
type conditions struct {
	// leaves returns the fields other than all, any and not. The function of a field
	// calls add with its condition, or with nil if the condition is left out.
	leaves func(add func(profiles.Match)) fields

	// allowEmpty specifies whether "all: []" and "any: []" are valid.
	allowEmpty bool

	// invalid reports an invalid condition, as a mistake or as a warning.
	invalid func(v value, reason string)
}

func warnLeftOut(v value, reason string) { v.warnf("%s: left out", reason) }

func linkerdRequests() conditions {
	c := conditions{allowEmpty: true, invalid: warnLeftOut}
	c.leaves = func(add func(profiles.Match)) fields {
		return fields{
			"method": func(v value) {
				if method, ok := v.text(); ok && method != "" {
					add(v.leaf(c, profiles.Method(strings.ToUpper(method)))) // the controller ignores case
				}
			},
			"pathRegex": func(v value) {
				if regex, ok := v.text(); ok && regex != "" {
					add(v.leaf(c, profiles.Path(regex)))
				}
			},
		}
	}
	return c
}

func linkerdResponses() conditions {
	return conditions{invalid: warnLeftOut, leaves: func(add func(profiles.Match)) fields {
		return fields{"status": func(v value) {
			if s, ok := v.linkerdStatus(); ok {
				add(s)
			} else {
				add(nil)
			}
		}}
	}}
}

func (v value) requestMatch() profiles.Match  { return v.condition(linkerdRequests()) }
func (v value) responseMatch() profiles.Match { return v.condition(linkerdResponses()) }

// condition reads a condition. All fields of a mapping must match. It returns nil if none is left.
func (v value) condition(c conditions) profiles.Match {
	if v.tooDeep() {
		return nil
	}
	var parts []profiles.Match
	given := 0
	add := func(m profiles.Match) {
		given++
		if m != nil {
			parts = append(parts, m)
		}
	}
	known := c.leaves(add)
	known["all"] = func(v value) { add(v.joined(c, func(ms []profiles.Match) profiles.Match { return profiles.All(ms) })) }
	known["any"] = func(v value) { add(v.joined(c, func(ms []profiles.Match) profiles.Match { return profiles.Any(ms) })) }
	known["not"] = func(v value) {
		if m := v.condition(c); m != nil {
			add(profiles.Not{Match: m})
		} else {
			add(nil)
		}
	}
	wrong := len(v.wrong)
	v.read(known)
	if given == 0 && len(v.wrong) == wrong {
		v.failf("no condition: want one or more of %s", names(known))
	}
	switch {
	case given == 1 && len(parts) == 1:
		return parts[0]
	case given <= 1, len(parts) == 0 && !c.allowEmpty:
		return nil
	}
	return profiles.All(parts)
}

// joined reads the members of an all or any and joins them.
func (v value) joined(c conditions, join func([]profiles.Match) profiles.Match) profiles.Match {
	var members []profiles.Match
	for _, item := range v.items() {
		if item.isNull() {
			item.failf("an empty condition: take it out")
		} else if m := item.condition(c); m != nil {
			members = append(members, m)
		}
	}
	if len(members) == 0 && !c.allowEmpty {
		c.invalid(v, "no members")
		return nil
	}
	return join(members)
}

// leaf returns m, or nil if m is invalid, after reporting it.
func (v value) leaf(c conditions, m profiles.Match) profiles.Match {
	if why := checkLeaf(m); why != "" {
		c.invalid(v, why)
		return nil
	}
	return m
}

// linkerdStatus reads a range. It rejects the ranges that linkerd's controller rejects,
// and leaves out a range with one end, as linkerd's proxy does.
func (v value) linkerdStatus() (s profiles.Status, ok bool) {
	var low, high uint32
	wrong := len(v.wrong)
	v.read(fields{"min": count32(&low, math.MaxUint32), "max": count32(&high, math.MaxUint32)})
	outside := func(n uint32) bool { return n != 0 && (n < 100 || n > 599) }
	switch {
	case len(v.wrong) > wrong:
		return s, false
	case outside(low), outside(high):
		v.failf("%d to %d: want statuses from 100 to 599", low, high)
		return s, false
	case low == 0 || high == 0:
		warnLeftOut(v, "want both min and max")
		return s, false
	case low > high:
		v.failf("max %d is below min %d", high, low)
		return s, false
	}
	return profiles.Status{Min: int(low), Max: int(high)}, true
}

// checkLeaf returns the reason why m is invalid, or "".
func checkLeaf(m profiles.Match) string {
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
	return reason((profiles.Route{Match: m}).Validate())
}

func regexReason(err error) string {
	return "want a regular expression: " + strings.TrimPrefix(err.Error(), "error parsing regexp: ")
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func fail(v value, why string) { v.failf("%s", why) }

// shortRequests returns the syntax of conditions on requests in the short form. A list
// in place of a value matches if one of its members matches.
func shortRequests() conditions {
	c := conditions{allowEmpty: true, invalid: fail}
	c.leaves = func(add func(profiles.Match)) fields {
		texts := func(leaf func(value, string) profiles.Match) func(value) {
			return func(v value) {
				add(v.anyOf(func(v value) profiles.Match {
					if text, ok := v.text(); ok {
						return leaf(v, text)
					}
					return nil
				}))
			}
		}
		return fields{
			"method":     texts(func(v value, s string) profiles.Match { return v.leaf(c, profiles.Method(strings.ToUpper(s))) }),
			"path":       texts(value.exactPath),
			"pathPrefix": texts(func(v value, s string) profiles.Match { return v.leaf(c, profiles.PathPrefix(s)) }),
			"pathRegex":  texts(value.pathRegex),
			"grpc":       func(v value) { add(v.grpc()) },
			"host": func(v value) {
				add(v.anyOf(func(v value) profiles.Match {
					if t := v.textMatch(); t != nil {
						return v.leaf(c, profiles.Host{Value: t})
					}
					return nil
				}))
			},
			"header": named(add, func(v value, name string, t profiles.StringMatch) profiles.Match {
				if strings.EqualFold(name, "host") {
					v.failf("the host of a request is not among its header fields: write host in place of header")
					return nil
				}
				return v.leaf(c, profiles.Header{Name: name, Value: t})
			}),
			"query": named(add, func(v value, name string, t profiles.StringMatch) profiles.Match {
				return v.leaf(c, profiles.Query{Name: name, Value: t})
			}),
		}
	}
	return c
}

// anyOf reads a value, or a list of values of which one must match.
func (v value) anyOf(read func(value) profiles.Match) profiles.Match {
	if v.n.Kind != yaml.SequenceNode {
		return read(v)
	}
	var members profiles.Any
	for _, item := range v.items() {
		if m := read(item); m != nil {
			members = append(members, m)
		}
	}
	if len(v.n.Content) == 0 {
		v.failf("an empty list holds for no request: take it out")
	}
	return members
}

// named reads a mapping from names to conditions on their values. All must match.
func named(add func(profiles.Match), leaf func(value, string, profiles.StringMatch) profiles.Match) func(value) {
	return func(v value) {
		v.each(func(key, item value) {
			add(item.anyOf(func(v value) profiles.Match {
				if t := v.textMatch(); t != nil {
					return leaf(v, key.n.Value, t)
				}
				return nil
			}))
		})
	}
}

// textMatch reads a text for an exact match, or a mapping for another kind. It returns
// nil after a mistake.
func (v value) textMatch() (t profiles.StringMatch) {
	if v.n.Kind != yaml.MappingNode {
		if text, ok := v.text(); ok {
			return profiles.Exact(text)
		}
		return nil
	}
	given := 0
	kind := func(of func(string) profiles.StringMatch) func(value) {
		return func(v value) {
			if text, ok := v.text(); ok {
				t = of(text)
			}
			given++
		}
	}
	wrong := len(v.wrong)
	v.read(fields{
		"exact":  kind(func(s string) profiles.StringMatch { return profiles.Exact(s) }),
		"prefix": kind(func(s string) profiles.StringMatch { return profiles.Prefix(s) }),
		"regex": func(v value) {
			kind(func(s string) profiles.StringMatch { return profiles.Regex(s) })(v)
			v.checkRegex()
		},
		"present": func(v value) {
			var present bool
			boolean(&present)(v)
			if !present {
				v.failf("want true; for an absent field, put the condition below not")
			}
			t = profiles.AnyValue{}
			given++
		},
	})
	if given != 1 && len(v.wrong) == wrong {
		v.failf("want a text, or one of exact, prefix, regex and present")
	}
	if len(v.wrong) > wrong {
		return nil
	}
	return t
}

// exactPath returns a condition for exactly this path, as a literal regular expression.
func (v value) exactPath(path string) profiles.Match {
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#") {
		v.failf("want a path that begins with '/', without a query; pathRegex takes regular expressions")
		return nil
	}
	return profiles.Path("^" + regexp.QuoteMeta(path) + "$")
}

// pathRegex returns a condition with a group around regex, so that "/a|/b" matches both
// paths. linkerd adds no group.
func (v value) pathRegex(regex string) profiles.Match {
	if regex == "" {
		v.failf("want a regular expression for the whole path")
	}
	if regex == "" || !v.checkRegex() {
		return nil
	}
	return v.leaf(conditions{invalid: fail}, profiles.Path("^(?:"+regex+")$"))
}

// checkRegex parses the expression without the group. "a)|(b" would be valid only with a group.
func (v value) checkRegex() bool {
	if _, err := syntax.Parse(v.n.Value, syntax.Perl); err != nil {
		v.failf("%s", regexReason(err))
		return false
	}
	return true
}

func (v value) grpc() profiles.Match {
	var g profiles.GRPC
	wrong := len(v.wrong)
	v.read(fields{"service": word(&g.Service), "method": word(&g.Method)})
	if len(v.wrong) > wrong {
		return nil
	}
	return v.leaf(conditions{invalid: fail}, g)
}
