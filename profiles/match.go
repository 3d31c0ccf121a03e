package profiles

// Match is a condition: a tree whose leaves are [Path], [PathPrefix], [Method],
// [Header], [Query], [Host] and [GRPC] where it is about requests, and [Status],
// [GRPCStatus] and [Trailer] where it is about responses. [All], [Any] and [Not]
// join leaves of either kind; a leaf of the other kind is invalid.
//
// Invalid members of All and Any are left out of them. A Not of something
// invalid is invalid itself. A tree must not contain itself.
type Match interface {
	isMatch()
}

// The kinds of Match.
type (
	// All holds if every member does. An empty All holds for every request;
	// for responses it is invalid.
	All []Match

	// Any holds if one of its members does. An empty Any holds for no request;
	// for responses it is invalid.
	Any []Match

	// Not holds if its member does not.
	Not struct{ Match Match }

	// Path is a regular expression for the path of a request, without the
	// query. Space around it is cut off, and it is anchored at both ends as
	// linkerd does it: a '^' is put in front if there is none, and a '$' at
	// the end if there is none, without a group around what stands between.
	// So "/a|/b" means "^/a|/b$": begins with /a, or ends with /b; write
	// "(/a|/b)" for one of the two.
	//
	// The dialect is that of package regexp. It differs from linkerd's in what
	// paths rarely have: \d, \w and \s are ASCII only, "&&" and "--" in a
	// class have no meaning, and a repeat count is at most 1000. An expression
	// that is longer than 10 000 bytes, or more than 10 000 instructions once its
	// repeats are written out ("[^/]{1,64}" is 128), is invalid, whereas linkerd
	// allows for 10 MiB. And a route is left out with which the repeats of a
	// profile make more than 20 000 instructions beyond what is written.
	Path string

	// PathPrefix holds for paths whose first segments it is: "/a" for "/a",
	// "/a/" and "/a/b", and not for "/ab". A '/' at its end makes no
	// difference. It begins with '/', has no query, and is compared with the
	// path as that was sent, percent signs and all.
	PathPrefix string

	// Method is the method of a request, exactly as sent. It must be a token
	// as HTTP defines it.
	Method string

	// Header holds if one of the values of the request header field does.
	// Name must be a token; its case does not matter. The host of a request
	// is not among its header fields.
	Header struct {
		Name  string
		Value StringMatch
	}

	// Query holds if one of the values of the query parameter does. Names and
	// values are compared decoded, as net/url does it: '+' is a space, and
	// parameters that are badly encoded are not there. Name must not be empty.
	Query struct {
		Name  string
		Value StringMatch
	}

	// Host is a condition on the authority of a request, without the port and
	// the brackets of an IPv6 address. The case of letters does not matter.
	// Present holds if the request says its host.
	Host struct{ Value StringMatch }

	// GRPC holds for paths "/Service/Method" of two segments. An empty Service
	// or Method stands for any; Service is with its package, "books.v1.Books".
	GRPC struct{ Service, Method string }

	// Status holds if the status of a response is from Min to Max, both
	// included. Both must be from 100 to 999; there is no open end.
	Status struct{ Min, Max int }

	// GRPCStatus holds if the gRPC status of a response is from Min to Max, both
	// included, and at most 16. It is in the trailers, or, of a response that has
	// nothing else, in the header, which comes first.
	GRPCStatus struct{ Min, Max uint32 }

	// Trailer holds if one of the values of the trailer field of a response
	// does. Name must be a token; its case does not matter. Of a response whose
	// gRPC status is in the header the header is the trailers.
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
