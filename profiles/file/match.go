package file

import (
	"regexp"
	"regexp/syntax"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/profiles"
)

func fail(v value, why string) { v.failf("%s", why) }

// shortRequests is how the short form writes conditions on requests. A list in
// place of a single value is any of them.
func shortRequests() conditions {
	c := conditions{bare: true, drop: fail}
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
			"header": named(add, func(v value, name string, t profiles.Text) profiles.Match {
				if strings.EqualFold(name, "host") {
					v.failf("the host of a request is not among its header fields: write host in place of header")
					return nil
				}
				return v.leaf(c, profiles.Header{Name: name, Value: t})
			}),
			"query": named(add, func(v value, name string, t profiles.Text) profiles.Match {
				return v.leaf(c, profiles.Query{Name: name, Value: t})
			}),
		}
	}
	return c
}

// anyOf reads a value, or a list of which one has to hold.
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

// named reads a mapping of names to conditions on their values, all of which
// have to hold.
func named(add func(profiles.Match), leaf func(value, string, profiles.Text) profiles.Match) func(value) {
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

// textMatch reads a text that is meant exactly, or one of the other kinds in a
// mapping. It returns nil with a mistake noted.
func (v value) textMatch() (t profiles.Text) {
	if v.n.Kind != yaml.MappingNode {
		if text, ok := v.text(); ok {
			return profiles.Exact(text)
		}
		return nil
	}
	given := 0
	kind := func(of func(string) profiles.Text) func(value) {
		return func(v value) {
			if text, ok := v.text(); ok {
				t = of(text)
			}
			given++
		}
	}
	wrong := len(v.wrong)
	v.read(fields{
		"exact":  kind(func(s string) profiles.Text { return profiles.Exact(s) }),
		"prefix": kind(func(s string) profiles.Text { return profiles.Prefix(s) }),
		"regex": func(v value) {
			kind(func(s string) profiles.Text { return profiles.Regex(s) })(v)
			v.checkRegex()
		},
		"present": func(v value) {
			var present bool
			boolean(&present)(v)
			if !present {
				v.failf("want true; for what must not be there, put the condition below not")
			}
			t = profiles.Present{}
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

// exactPath is a regular expression that is a literal, which is cheap to match.
func (v value) exactPath(path string) profiles.Match {
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#") {
		v.failf("want a path that begins with '/', without a query; pathRegex takes regular expressions")
		return nil
	}
	return profiles.Path("^" + regexp.QuoteMeta(path) + "$")
}

// pathRegex puts a group around the expression, which linkerd does not: here
// "/a|/b" is one of the two.
func (v value) pathRegex(regex string) profiles.Match {
	if regex == "" {
		v.failf("want a regular expression for the whole path")
	}
	if regex == "" || !v.checkRegex() {
		return nil
	}
	return v.leaf(conditions{drop: fail}, profiles.Path("^(?:"+regex+")$"))
}

// checkRegex parses the expression on its own: one such as "a)|(b" would break
// out of its group.
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
	return v.leaf(conditions{drop: fail}, g)
}
