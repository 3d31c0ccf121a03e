package profiles

import "strings"

// Match is a condition. [Path], [PathPrefix], [Method], [Header], [Query], [Host] and [GRPC] are
// conditions on requests, for a [Route]. [Status], [GRPCStatus] and [Trailer] are conditions on
// responses, for a [ResponseClass]. [All], [Any] and [Not] combine conditions of one kind. A
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

	// Path is a regular expression for the path of a request, without the query. White space
	// around the expression is removed. As in linkerd, a missing '^' is added at the start and a
	// missing '$' at the end, without a group. So "/a|/b" means "^/a|/b$". Write "(/a|/b)" to
	// match one of two paths.
	//
	// The syntax is that of package regexp. It differs from linkerd's: \d, \w and \s are
	// ASCII only, "&&" and "--" in a class have no special meaning, and a repeat count is
	// at most 1000. An expression is invalid above 10 000 bytes, or above 10 000
	// instructions with its repeats written out ("[^/]{1,64}" has 128). The expressions of a
	// profile together have no limit.
	Path string

	// PathPrefix holds for paths that begin with all of its segments: "/a" holds for "/a", "/a/"
	// and "/a/b", but not for "/ab". A PathPrefix must begin with '/' and have no query. A '/' at
	// its end has no effect. Percent-encoded characters are not decoded.
	PathPrefix string

	// Method holds for requests with this method. Case matters. A Method must be an HTTP token.
	Method string

	// Header holds if one of the values of the request header field Name satisfies Value. Name must
	// be a token; case does not matter. Use [Host] for the host of a request.
	Header struct {
		Name  string
		Value StringMatch
	}

	// Query holds if one of the values of the query parameter Name satisfies Value.
	// Names and values are decoded as by net/url; parameters with an invalid encoding
	// are ignored. Name must not be empty.
	Query struct {
		Name  string
		Value StringMatch
	}

	// Host holds if the host of a request satisfies Value. The host is the authority without the
	// port, the brackets of an IPv6 address and a final dot. Case does not matter. [AnyValue]
	// holds for every request with a host. The number of routes with Exact hosts, or with a Suffix
	// that begins with a dot, has little effect on the time of a match.
	Host struct{ Value StringMatch }

	// GRPC holds for paths of the form "/Service/Method". An empty Service or Method
	// matches any service or method. Service includes its package: "books.v1.Books".
	GRPC struct{ Service, Method string }

	// Status holds if the status of a response is from Min to Max, both included.
	// Both must be from 100 to 999.
	Status struct{ Min, Max int }

	// GRPCStatus holds if the gRPC status of a response is from Min to Max, both included.
	// Max is at most 16. The status is in the trailers, or in the headers of a response
	// without a body.
	GRPCStatus struct{ Min, Max uint32 }

	// Trailer holds if one of the values of the trailer field Name satisfies Value. Name
	// must be a token; case does not matter. If the headers have a gRPC status, the
	// condition applies to the headers, because such a response has no trailers.
	Trailer struct {
		Name  string
		Value StringMatch
	}
)

func (All) isMatch()        {}
func (Any) isMatch()        {}
func (Not) isMatch()        {}
func (Path) isMatch()       {}
func (PathPrefix) isMatch() {}
func (Method) isMatch()     {}
func (Header) isMatch()     {}
func (Query) isMatch()      {}
func (Host) isMatch()       {}
func (GRPC) isMatch()       {}
func (Status) isMatch()     {}
func (GRPCStatus) isMatch() {}
func (Trailer) isMatch()    {}

type (
	allOf []matcher
	anyOf []matcher
	notOf struct{ matcher }
)

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

func (n notOf) holds(f facts) bool { return !n.matcher.holds(f) }
func (n notOf) String() string     { return "not (" + n.matcher.String() + ")" }

func needsOf(members []matcher) needs {
	var n needs
	for _, m := range members {
		n |= m.needs()
	}
	return n
}

func list(members []matcher) string {
	texts := make([]string, len(members))
	for i, m := range members {
		texts[i] = m.String()
	}
	return " (" + strings.Join(texts, ", ") + ")"
}
