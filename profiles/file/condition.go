package file

import (
	"errors"
	"fmt"
	"math"
	"regexp/syntax"
	"strings"

	"github.com/gotower/gotower/profiles"
)

// conditions is how a format writes one kind of condition.
type conditions struct {
	// leaves returns what reads the conditions that are no trees. Each tells
	// add what it read, or nil for what is left out of the profile.
	leaves func(add func(profiles.Match)) fields

	// bare says that "all: []" and "any: []" mean something.
	bare bool

	// drop notes what is invalid, and left out if that is no mistake.
	drop func(v value, why string)
}

func linkerdDrops(v value, why string) { v.warnf("%s: left out as linkerd does", why) }

// routerDrops notes what is too much for a Router alone.
func routerDrops(v value, why string) { v.warnf("%s: left out, which linkerd would not do", why) }

func linkerdRequests() conditions {
	c := conditions{bare: true, drop: linkerdDrops}
	c.leaves = func(add func(profiles.Match)) fields {
		return fields{
			"method": func(v value) {
				if method, ok := v.text(); ok && method != "" {
					add(v.leaf(c, profiles.Method(strings.ToUpper(method)))) // as the controller does
				}
			},
			"pathRegex": func(v value) {
				regex, ok := v.text()
				if !ok || regex == "" {
					return
				}
				c := c
				if _, err := syntax.Parse(regex, syntax.Perl); err == nil {
					c.drop = routerDrops // what is left to be wrong with it is its size
				}
				add(v.leaf(c, profiles.Path(regex)))
			},
		}
	}
	return c
}

func linkerdResponses() conditions {
	return conditions{drop: linkerdDrops, leaves: func(add func(profiles.Match)) fields {
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

// condition reads a tree. Several fields of one mapping must all hold. It
// returns nil if nothing of it is left; members that are nil are left out.
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
	case given <= 1, len(parts) == 0 && !c.bare:
		return nil
	}
	return profiles.All(parts)
}

// joined reads the members of all or any.
func (v value) joined(c conditions, join func([]profiles.Match) profiles.Match) profiles.Match {
	var members []profiles.Match
	for _, item := range v.items() {
		if item.isNull() {
			item.failf("an empty condition: take it out")
		} else if m := item.condition(c); m != nil {
			members = append(members, m)
		}
	}
	if len(members) == 0 && !c.bare {
		c.drop(v, "no members")
		return nil
	}
	return join(members)
}

// leaf returns m, or nil if it is invalid.
func (v value) leaf(c conditions, m profiles.Match) profiles.Match {
	if why := checkLeaf(m); why != "" {
		c.drop(v, why)
		return nil
	}
	return m
}

// linkerdStatus refuses what the controller does. Of what it takes, the proxy
// leaves a range with an open end out.
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
		linkerdDrops(v, "want both min and max")
		return s, false
	case low > high:
		v.failf("max %d is below min %d", high, low)
		return s, false
	}
	return profiles.Status{Min: int(low), Max: int(high)}, true
}

// checkLeaf says why a condition is invalid, or "".
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

// tooMuch says of routes whose conditions are well by themselves which of them a
// Router would leave out because of those before, by their places in the list.
func tooMuch(routes []profiles.Route) map[int]error {
	conditions := make([]profiles.Route, len(routes))
	for i, r := range routes {
		conditions[i] = profiles.Route{Match: r.Match, Classes: r.Classes}
	}
	all, _ := (&profiles.Profile{Routes: conditions}).Validate().(interface{ Unwrap() []error })
	if all == nil {
		return nil
	}
	problems := make(map[int]error)
	for _, err := range all.Unwrap() {
		var i int
		if n, _ := fmt.Sscanf(err.Error(), "route %d:", &i); n == 1 {
			problems[i] = errors.Unwrap(err)
		}
	}
	return problems
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
