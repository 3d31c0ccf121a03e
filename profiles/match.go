package profiles

import (
	"net/netip"
	"strings"
)

// Match is a condition. [Path], [PathPrefix], [Method], [Header], [Query], [Host], [SourceIP] and
// [GRPC] are conditions on requests, for a [Route]. [Status], [GRPCStatus] and [Trailer] are
// conditions on responses, for a [ResponseClass]. [All], [Any] and [Not] combine conditions of one kind. A
// condition on responses is invalid in a Route, and a condition on requests is invalid in a
// ResponseClass.
//
// Invalid members of All and Any are left out. A Not of an invalid condition is
// invalid. A condition must not contain itself.
type Match interface {
	isMatch()
}

// The kinds of Match.
type (
	// All holds if every member holds. An empty All holds for every request, but is invalid
	// as a condition on responses.
	All []Match

	// Any holds if one of its members holds. An empty Any holds for no request, and is
	// invalid as a condition on responses.
	Any []Match

	// Not holds if the condition Match does not hold.
	Not struct{ Match Match }

	// Path is a regular expression for a request path, without the query. White space around the
	// expression is removed. As in linkerd, a missing '^' is added at the start and a missing '$'
	// at the end, without a group. So "/a|/b" means "^/a|/b$". Write "(/a|/b)" to match one of two
	// paths.
	//
	// The syntax is that of package regexp. Note that it differs from linkerd's: \d, \w and \s are
	// ASCII only, "&&" and "--" in a class have no special meaning, and a repeat count is at most
	// 1000. An expression is invalid above 10 000 bytes, or above 10 000 instructions with its
	// repeats written out ("[^/]{1,64}" takes 128). The total over a profile is not limited.
	//
	// In the path, the bytes that RFC 3986 excludes are percent-encoded as in "/a%7Cb", also if the
	// client sent "/a|b".
	Path string

	// PathPrefix holds for paths that begin with all of its segments: "/a" holds for "/a", "/a/"
	// and "/a/b", but not for "/ab". A PathPrefix must begin with '/' and must not contain a
	// query. A '/' at its end makes no difference. Percent-encoded characters are not decoded,
	// see Path.
	PathPrefix string

	// Method holds for requests with this method. Case matters. A Method must be an HTTP token.
	Method string

	// Header holds if the request header field Name satisfies Value. A field that was sent in several
	// lines counts as one value, the lines joined by ", ", or by "; " for Cookie, as in RFC 9110.
	// With AnyLine, it is sufficient that a single line satisfies Value, as in linkerd. Name must be
	// a token; case does not matter. Use [Host] for a request's host.
	Header struct {
		Name    string
		Value   StringMatch
		AnyLine bool
	}

	// Query holds if one value of the query parameter Name satisfies Value. Names and values are
	// decoded as in net/url; invalidly encoded parameters are ignored. Name must not be empty.
	Query struct {
		Name  string
		Value StringMatch
	}

	// Host holds if a request's host satisfies Value. The host is the authority without the port,
	// the brackets around an IPv6 address and a final dot. Case does not matter. [AnyValue] holds
	// for every request with a host. Routes with Exact hosts, or with a Suffix that begins with a
	// dot, hardly slow down a match, however many there are.
	Host struct{ Value StringMatch }

	// SourceIP holds if the client's address is in the range Prefix. The router gets the address from
	// Source of its Accessor. The condition does not hold for an unknown address.
	SourceIP struct{ Prefix netip.Prefix }

	// GRPC holds for paths of the form "/Service/Method". An empty Service or Method
	// matches any service or method. Service includes its package: "books.v1.Books".
	GRPC struct{ Service, Method string }

	// Status holds if the status of a response is from Min to Max, both included.
	// Both must be from 100 to 999.
	Status struct{ Min, Max int }

	// GRPCStatus holds if the response's gRPC status is from Min to Max, both included. Max is at
	// most 16. The status is in the trailers, or in the headers of a response without a body.
	GRPCStatus struct{ Min, Max uint32 }

	// Trailer holds if the trailer field Name satisfies Value, like a Header. Name must be a
	// token; case does not matter. If the headers contain a gRPC status, the condition applies to
	// the headers, because such a response comes without trailers.
	Trailer struct {
		Name  string
		Value StringMatch
	}
)

// isMatch marks the types that implement [Match].
func (All) isMatch()        {}
func (Any) isMatch()        {}
func (Not) isMatch()        {}
func (Path) isMatch()       {}
func (PathPrefix) isMatch() {}
func (Method) isMatch()     {}
func (Header) isMatch()     {}
func (Query) isMatch()      {}
func (Host) isMatch()       {}
func (SourceIP) isMatch()   {}
func (GRPC) isMatch()       {}
func (Status) isMatch()     {}
func (GRPCStatus) isMatch() {}
func (Trailer) isMatch()    {}

// The compiled forms of All, Any and Not.
type (
	allOf []matcher
	anyOf []matcher
	notOf struct{ matcher }
)

// holds reports whether all members hold. It evaluates no member after the first that does not.
func (a allOf) holds(f facts) bool {
	for _, m := range a {
		if !m.holds(f) {
			return false
		}
	}
	return true
}

func (a allOf) needs() needs   { return needsOf(a) }
func (a allOf) String() string { return "all" + list(a) }

// holds reports whether a member holds. It evaluates no member after the first that does.
func (a anyOf) holds(f facts) bool {
	for _, m := range a {
		if m.holds(f) {
			return true
		}
	}
	return false
}

func (a anyOf) needs() needs   { return needsOf(a) }
func (a anyOf) String() string { return "any" + list(a) }

// holds reports whether the member does not hold.
func (n notOf) holds(f facts) bool { return !n.matcher.holds(f) }
func (n notOf) String() string     { return "not (" + n.matcher.String() + ")" }

// needsOf returns the values that any of the members needs.
func needsOf(members []matcher) needs {
	var n needs
	for _, m := range members {
		n |= m.needs()
	}
	return n
}

// list returns the members as a text for String.
func list(members []matcher) string {
	texts := make([]string, len(members))
	for i, m := range members {
		texts[i] = m.String()
	}
	return " (" + strings.Join(texts, ", ") + ")"
}
