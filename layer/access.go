package layer

import (
	"context"
	"iter"
	"net/netip"
)

// Accessor is how layers that look at requests (routes, tap) read them without
// knowing their protocol. A protocol package supplies one: httplayer.Accessor
// reads *http.Request and *http.Response. Its methods change nothing, and are
// safe for concurrent use.
type Accessor[Req, Rsp any] interface { //nolint:interfacebloat // it is what there is to see of a message
	Method(Req) string          // "GET", as sent
	Scheme(Req) string          // "http" or "https"; "" when the request does not say
	Authority(Req) string       // the URI's authority, else the Host header, else ""
	Path(Req) string            // as sent, without the query
	Query(Req) string           // as sent, without the '?'; "" if there is none
	Source(Req) netip.AddrPort  // the client's address; zero when unknown
	RequestHeader(Req) Header   // never nil
	Status(Rsp) int             // the HTTP status
	ResponseHeader(Rsp) Header  // never nil
	ResponseTrailer(Rsp) Header // never nil; empty until the response ended

	// Complete is the protocol's Completion.
	Complete(ctx context.Context, rsp Rsp, o Observer) Rsp
}

// Header are header or trailer fields. Names are matched without regard to
// case. Fields that keep the values of a name together should have a method
// Values(name string) []string as well, as [net/http.Header] has: without it,
// finding those after the first takes a walk over all, and an allocation.
type Header interface {
	Get(name string) string         // the first value, or ""
	All() iter.Seq2[string, string] // every name and value, a pair for each value
}
