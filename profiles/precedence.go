package profiles

import (
	"cmp"
	"slices"
)

// Precedence determines which of several matching routes applies to a request.
type Precedence uint8

// The values of Precedence.
const (
	// FirstMatch selects the first matching route in the order of the profile.
	FirstMatch Precedence = iota

	// MostSpecific selects the matching route with the most specific condition, as in the Gateway
	// API. These criteria apply in order: an exact host, a longer [Suffix] of the host, an exact
	// path, a longer [PathPrefix], more headers, more query parameters, a method. Among routes
	// that are equal by all criteria, the first in the profile applies. Each member of an [Any]
	// is compared as if it were a separate route. A [Path] counts as an exact path. Between two
	// [GRPC] conditions, the longer Service is more specific, and then the longer Method.
	MostSpecific
)

// String returns "first match" or "most specific".
func (p Precedence) String() string {
	return [...]string{"first match", "most specific"}[min(p, MostSpecific)]
}

// candidatesOf returns the candidates for the given routes, in the order of the precedence p.
func candidatesOf[Req, Rsp any](routes []*liveRoute[Req, Rsp], p Precedence) []candidate[Req, Rsp] {
	candidates := make([]candidate[Req, Rsp], 0, len(routes))
	if p == FirstMatch {
		for _, r := range routes {
			candidates = append(candidates, candidate[Req, Rsp]{match: r.match, needs: r.needs, route: r})
		}
		return candidates
	}
	for _, r := range routes {
		// Each alternative of an Any has its own rank.
		for _, m := range alternatives(r.match) {
			candidates = append(candidates, candidate[Req, Rsp]{match: m, needs: m.needs(), route: r, rank: rankOf(m)})
		}
	}
	// Stable, so that equally specific routes keep the order of the profile.
	slices.SortStableFunc(candidates, func(a, b candidate[Req, Rsp]) int { return b.compare(a.rank) })
	return candidates
}

// alternatives returns the members of m if m is an Any. Otherwise it returns a list with only m.
func alternatives(m matcher) []matcher {
	if members, ok := m.(anyOf); ok {
		return members
	}
	return []matcher{m}
}

// rank is a condition's specificity. Ranks are compared field by field, in the order of the
// fields. A higher value is more specific.
type rank struct {
	host, path, headers, queries, method int64
}

// exactRank is the rank of a condition on the whole path or host, which goes before every prefix or suffix.
const exactRank = 1 << 40 // above every length

// compare returns a number above 0 if r is more specific than other, below 0 if it is less, or 0.
func (r rank) compare(other rank) int {
	return cmp.Or(
		cmp.Compare(r.host, other.host), cmp.Compare(r.path, other.path), cmp.Compare(r.headers, other.headers),
		cmp.Compare(r.queries, other.queries), cmp.Compare(r.method, other.method))
}

// rankOf returns m's rank. An Any or a Not ranks zero, whatever it contains.
func rankOf(m matcher) (r rank) {
	switch m := m.(type) {
	case allOf:
		// The most specific path and host count, and all headers and query parameters.
		for _, member := range m {
			memberRank := rankOf(member)
			r.host, r.path = max(r.host, memberRank.host), max(r.path, memberRank.path)
			r.headers, r.queries, r.method = r.headers+memberRank.headers, r.queries+memberRank.queries, max(r.method, memberRank.method)
		}
	case *hostIs:
		switch m.kind { //nolint:exhaustive // the other kinds have the lowest rank
		case matchExact:
			r.host = exactRank
		case matchSuffix:
			r.host = int64(len(m.want))
		}
	case exactPath, *pathSegments, *regexPath:
		r.path = exactRank
	case prefixPath:
		r.path = int64(len(m))
	case grpcCondition:
		// The service counts more than any length of a method.
		r.path = int64(len(m.service))<<16 | int64(len(m.method))
	case *headerCondition:
		r.headers = 1
	case *queryCondition:
		r.queries = 1
	case methodIs:
		r.method = 1
	}
	return r
}
