package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/authority"
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

// Editor is how layers change messages, and answer in the place of a service,
// without knowing their protocol: httplayer.Editor does it for net/http. Its
// methods are safe for concurrent use.
type Editor[Req, Rsp any] interface {
	// Request returns req with other header fields. Req itself stays as it
	// was, so that a request that is rejected below is untouched; its body is
	// the same one.
	EditRequest(req Req, c HeaderMutation) Req

	// Response returns rsp with other header fields. It is the caller's, and
	// may be changed in place.
	EditResponse(rsp Rsp, c HeaderMutation) Rsp

	// Reply makes a response to req without a service. The body of req is not
	// read. It is closed if the protocol requires the responder to close it.
	NewResponse(req Req, a DirectResponse) Rsp

	// Fork returns req with a body that keeps up to limit bytes of the bytes
	// read. It calls whole once, on the goroutine of the reader: with a copy of
	// the request if the body was read to its end, or with false if it was
	// larger than limit or not read to its end. The copy has its own context,
	// which never ends. A request without a body is copied at once. Fork reads
	// nothing itself.
	TeeRequest(req Req, limit int64, whole func(copied Req, ok bool)) Req
}

// HeaderMutation change header fields: first Add, then Set, then Remove, as
// linkerd's proxy does it. The zero value changes nothing. Names are compared
// without regard to case.
//
// To set Host gives a request another authority. Fields of the connection
// rather than of the message (Connection, Transfer-Encoding, Content-Length,
// Upgrade and the like) are not to be changed.
type HeaderMutation struct {
	Add    []HeaderField // one more value each
	Set    []HeaderField // in place of all values of the name
	Remove []string      // names
}

// HeaderField is a header field.
type HeaderField struct{ Name, Value string }

// DirectResponse is what Editor.NewResponse makes a response of.
type DirectResponse struct {
	Status  int           // the HTTP status
	GRPC    uint32        // the status for gRPC requests, if not 0; else what Status means there
	Message string        // the body of the response, or the message of the gRPC status
	Header  []HeaderField // beside what the protocol asks for
}

// Empty reports whether c changes nothing.
func (c HeaderMutation) Empty() bool { return len(c.Add) == 0 && len(c.Set) == 0 && len(c.Remove) == 0 }

// Validate returns an error for all that Valid leaves out, joined, or nil.
func (c HeaderMutation) Validate() error {
	_, problems := c.Valid()
	return errors.Join(problems...)
}

// Valid returns c without the invalid parts, and an error for each: a name that
// is not a token, a value with a line break or another control character, a
// field of the connection, a Host that is added, removed, or not a host with an
// optional port. It does not change c.
func (c HeaderMutation) Valid() (valid HeaderMutation, problems []error) {
	left := func(op string, f HeaderField) bool {
		err := f.validate(op == "set")
		if err != nil {
			problems = append(problems, fmt.Errorf("%s %q: %w", op, f.Name, err))
		}
		return err != nil
	}
	of := func(op string, fields []HeaderField) []HeaderField {
		return slices.DeleteFunc(slices.Clone(fields), func(f HeaderField) bool { return left(op, f) })
	}
	valid.Add, valid.Set = of("add", c.Add), of("set", c.Set)
	valid.Remove = slices.DeleteFunc(slices.Clone(c.Remove), func(name string) bool {
		return left("remove", HeaderField{Name: name})
	})
	return valid, problems
}

// connectionFields returns the fields that belong to a connection or frame a
// message. The sender of a message writes them.
func connectionFields() []string {
	return []string{
		"connection", "content-length", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
		"te", "trailer", "transfer-encoding", "upgrade",
	}
}

func (f HeaderField) validate(set bool) error {
	name := strings.ToLower(f.Name)
	switch {
	case name == "" || strings.ContainsFunc(name, func(c rune) bool { return !isTokenChar(c) }):
		return errors.New("not a name of letters, digits and any of !#$%&'*+-.^_`|~")
	case slices.Contains(connectionFields(), name):
		return errors.New("it belongs to the connection, not to the message")
	case strings.ContainsFunc(f.Value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
		return fmt.Errorf("value %q has a control character", f.Value)
	case name == "host" && !set:
		return errors.New("a request has one Host: it can be set, and nothing else")
	case name == "host" && !authority.Valid(f.Value):
		return fmt.Errorf("value %q is not a host with an optional port", f.Value)
	}
	return nil
}

// isTokenChar is tchar of RFC 9110, section 5.6.2.
func isTokenChar(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c != 0 && strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}

// bodyAccessor finds the bodies of requests or responses, where they have one that
// [AtEnd] would know. It is looked up when a layer is made.
type bodyAccessor[T any] struct {
	index int // of the field Body
	has   bool
}

func bodyAccessorOf[T any]() bodyAccessor[T] {
	index, ok := bodyField(reflect.TypeFor[T]())
	return bodyAccessor[T]{index, ok}
}

// body returns the body of message, or nil.
func (s bodyAccessor[T]) body(message T) io.ReadCloser {
	if !s.has {
		return nil
	}
	v := reflect.ValueOf(message)
	if v.IsNil() {
		return nil
	}
	body, _ := reflect.TypeAssert[io.ReadCloser](v.Elem().Field(s.index))
	return body
}

// observed returns the wrapper that all observers of a response's body share,
// if it has one. Until the response is handed on, a layer may put a reader of
// its own under the wrapper: so it costs no second one.
func (s bodyAccessor[T]) observed(rsp T) *observedBody {
	switch b := s.body(rsp).(type) {
	case *observedBody:
		return b
	case *observedStream:
		return b.observedBody
	case *observedConn:
		return b.observedBody
	}
	return nil
}

// CloseBody closes the body of a request or response, if its type has one, as
// for [AtEnd].
func CloseBody[T any](message T) { bodyAccessorOf[T]().closeBody(message) }

// closeBody closes the body of message, and reports whether there was one.
func (s bodyAccessor[T]) closeBody(message T) bool {
	body := s.body(message)
	if body == nil {
		return false
	}
	_ = body.Close()
	return true
}
