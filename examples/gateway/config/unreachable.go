package config

import (
	"slices"
	"strings"
)

// warnUnreachable warns about each route that no request reaches, because earlier routes match
// everything that it matches. Conditions are compared one by one, so a route that is unreachable
// for another reason, such as a regular expression, goes unnoticed.
func (c *Config) warnUnreachable(n node) {
	for i := range c.Routes {
		// covering collects the names of the routes that match before this one.
		var covering []string
		if c.Routes[i].isCovered(c.Routes[:i], c.Listeners, func(r *Route) {
			if name := string(r.Name); !slices.Contains(covering, name) {
				covering = append(covering, name)
			}
		}) {
			n.at("routes").item(i).warnf("no request reaches route %s, because earlier routes match all of its requests: %s",
				c.Routes[i].Name, strings.Join(covering, ", "))
		}
	}
}

// isCovered reports whether every request that r matches also matches a route in earlier. It
// calls report with these routes.
func (r *Route) isCovered(earlier []Route, listeners []Listener, report func(*Route)) bool {
	// Without listeners, the route uses all that serve HTTP.
	names := r.Listeners
	if len(names) == 0 {
		for i := range listeners {
			if listeners[i].Protocol != "TCP" {
				names = append(names, listeners[i].Name)
			}
		}
	}
	hostnames := r.Hostnames
	matches := r.Matches
	if len(hostnames) == 0 {
		hostnames = []Hostname{""} // any
	}
	// A match without conditions holds for all requests.
	if len(matches) == 0 {
		matches = []Match{{}}
	}
	// Every combination must be covered, possibly by different routes.
	for _, name := range names {
		for _, host := range hostnames {
			for i := range matches {
				// index becomes that of the first route that covers the combination.
				index := 0
				for index < len(earlier) && !earlier[index].covers(name, host, &matches[i], r.CORS != nil) {
					index++
				}
				if index == len(earlier) {
					return false
				}
				report(&earlier[index])
			}
		}
	}
	// A route that no listener uses is not covered, but a different mistake.
	return len(names) > 0
}

// covers reports whether r matches every request to a listener that uses host and meets m. An
// empty host stands for all hosts. If cors is true, preflight requests count too.
func (r *Route) covers(listener Name, host Hostname, m *Match, cors bool) bool {
	if len(r.Listeners) > 0 && !slices.Contains(r.Listeners, listener) {
		return false
	}
	if len(r.Hostnames) > 0 && !slices.ContainsFunc(r.Hostnames, func(h Hostname) bool { return h.covers(host) }) {
		return false
	}
	if len(r.Matches) == 0 {
		return true
	}
	// One match must cover m alone: several that cover it together are not recognized.
	for i := range r.Matches {
		match := &r.Matches[i]
		// r must also match the preflight requests that m implies.
		if match.covers(m) && (!cors || r.CORS != nil || match.Method == "" && len(match.Headers) == 0) {
			return true
		}
	}
	return false
}

func (v Hostname) covers(host Hostname) bool {
	suffix, wild := strings.CutPrefix(string(v), "*")
	return v == host || wild && strings.HasSuffix(string(host), suffix)
}

// covers reports whether every request that meets narrower also meets m.
func (m *Match) covers(narrower *Match) bool {
	// A gRPC call is always a POST.
	method := narrower.Method
	if narrower.GRPC != nil {
		method = "POST"
	}
	return m.Path.covers(narrower.Path) && (m.Method == "" || m.Method == method) && m.GRPC.covers(narrower.GRPC) &&
		coverPrefixes(m.ClientCIDRs, narrower.ClientCIDRs) &&
		coverValues(m.Headers, narrower.Headers, strings.EqualFold) &&
		coverValues(m.QueryParams, narrower.QueryParams, func(a, b string) bool { return a == b })
}

// covers reports whether every path that meets narrower also meets p. Regular expressions are only compared as
// texts.
func (p *PathMatch) covers(narrower *PathMatch) bool {
	switch {
	case p == nil:
		return true
	case narrower == nil:
		return false
	case *p == *narrower:
		return true
	}
	prefix := strings.TrimSuffix(string(p.Prefix), "/") // "/" becomes ""
	// Only one of the fields is set, so the concatenation is that one.
	text := string(narrower.Exact) + string(narrower.Prefix) + string(narrower.Pattern)
	return p.Prefix != "" && (prefix == "" || text == prefix || strings.HasPrefix(text, prefix+"/"))
}

func (g *GRPCMatch) covers(narrower *GRPCMatch) bool {
	return g == nil || narrower != nil &&
		(g.Service == "" || g.Service == narrower.Service) && (g.Method == "" || g.Method == narrower.Method)
}

// coverPrefixes reports whether list contains all addresses in ranges. An empty list contains
// every address.
func coverPrefixes(list, ranges []Prefix) bool {
	if len(list) == 0 {
		return true
	}
	for _, o := range ranges {
		if !slices.ContainsFunc(list, func(p Prefix) bool { return p.Bits() <= o.Bits() && p.Contains(o.Addr()) }) {
			return false
		}
	}
	// No ranges mean all addresses, which a list does not contain.
	return len(ranges) > 0
}

// coverValues reports whether every condition in list is also in conditions.
func coverValues(list, conditions []ValueMatch, equalNames func(a, b string) bool) bool {
	for _, v := range list {
		if !slices.ContainsFunc(conditions, func(o ValueMatch) bool { return equalNames(v.Name, o.Name) && v.equals(o) }) {
			return false
		}
	}
	return true
}

// equals reports whether v and w are the same condition.
func (v ValueMatch) equals(w ValueMatch) bool {
	return equalPointers(v.Exact, w.Exact) && equalPointers(v.Present, w.Present) &&
		v.Prefix == w.Prefix && v.RegularExpression == w.RegularExpression
}

func equalPointers[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }
