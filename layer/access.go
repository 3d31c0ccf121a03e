package layer

import (
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

// Accessor reads the path and other parts of requests and responses. Protocol-independent code,
// such as package tap, uses it. httplayer.HTTP implements it for *http.Request and *http.Response.
// The methods do not modify the messages and are safe for concurrent use.
type Accessor[Req, Rsp any] interface {
	Method(Req) string          // "GET", as sent
	Scheme(Req) string          // "http" or "https"; "" if unknown
	Authority(Req) string       // the URI's authority, else the Host header, else ""
	Path(Req) string            // as sent, without the query
	Query(Req) string           // as sent, without the '?'; "" without a query
	Source(Req) netip.AddrPort  // the client's address; zero when unknown
	RequestHeader(Req) Header   // never nil
	Status(Rsp) int             // the HTTP status
	ResponseHeader(Rsp) Header  // never nil
	ResponseTrailer(Rsp) Header // never nil; empty until the response ended
}

// Header gives read access to header or trailer fields. Names are case-insensitive.
type Header interface {
	Get(name string) string         // the first value, or ""
	Values(name string) []string    // all values; the caller must not modify them
	All() iter.Seq2[string, string] // every name and value, a pair for each value
}

// Editor changes requests and responses, and creates responses, for layers that work with
// every protocol. httplayer.HTTP implements it for *http.Request and *http.Response. Its
// methods are safe for concurrent use.
type Editor[Req, Rsp any] interface {
	// EditRequest returns a copy of req that shares its body, with the header changes c applied.
	// It does not modify req.
	EditRequest(req Req, c HeaderMutation) Req

	// EditPath returns a copy of req with another path and query and the same header and body. Both
	// are percent-encoded. It does not modify req.
	EditPath(req Req, path, query string) Req

	// EditResponse applies the header changes of c to rsp. It may modify rsp and return it,
	// or return a modified copy.
	EditResponse(rsp Rsp, c HeaderMutation) Rsp

	// NewResponse returns a new response to req with the content that direct specifies. It does
	// not read req's body, but closes it if the protocol requires that.
	NewResponse(req Req, direct DirectResponse) Rsp

	// TeeRequest returns req with a new body, which stores up to limit bytes as they are read. It
	// calls done once, on the goroutine that reads or closes the body. ok is true if the body was
	// read to its end and had at most limit bytes. If ok is true, copied is a copy of req with
	// the stored body and a context that never ends. For a request without a body, done is called
	// before TeeRequest returns.
	TeeRequest(req Req, limit int64, done func(copied Req, ok bool)) Req
}

// HeaderMutation lists changes to header fields. Add is applied first, then Set, then Remove, as
// in linkerd's proxy. The zero value changes nothing. Names are case-insensitive.
//
// Setting Host changes a request's authority. Hop-by-hop fields and those that delimit the
// message, such as Connection, Transfer-Encoding, Content-Length and Upgrade, are invalid (see
// [HeaderMutation.Validate]).
type HeaderMutation struct {
	Add    []HeaderField // each adds one value to the values of that name
	Set    []HeaderField // each replaces all values of that name
	Remove []string      // the names of the fields to remove
}

// HeaderField is one value of a header field, together with the field name.
type HeaderField struct{ Name, Value string }

// DirectResponse describes a response that [Editor.NewResponse] creates, without sending
// the request to a server.
type DirectResponse struct {
	Status  int           // the HTTP status
	GRPC    uint32        // the gRPC status code, for gRPC requests; 0 means the code that corresponds to Status
	Message string        // the body of the response; for a gRPC request the message of the gRPC status
	Header  []HeaderField // header fields in addition to those that the protocol requires
}

// Empty reports whether c changes nothing.
func (c HeaderMutation) Empty() bool { return len(c.Add) == 0 && len(c.Set) == 0 && len(c.Remove) == 0 }

// Validate returns nil if all changes of c are valid. Otherwise it joins the errors that
// [HeaderMutation.Valid] returns.
func (c HeaderMutation) Validate() error {
	_, problems := c.Valid()
	return errors.Join(problems...)
}

// Valid returns the valid changes of c, and one error for each invalid change. A change is
// invalid if:
//
//   - the name is not a token
//   - the value contains a control character
//   - the field belongs to the connection, such as Upgrade, or delimits the message
//   - the change adds or removes Host
//   - the change sets Host to a value that is not a host with an optional port
func (c HeaderMutation) Valid() (valid HeaderMutation, problems []error) {
	// invalid reports whether the change is invalid, and collects the error.
	invalid := func(op string, f HeaderField) bool {
		err := f.validate(op == "set")
		if err != nil {
			problems = append(problems, fmt.Errorf("%s %q: %w", op, f.Name, err))
		}
		return err != nil
	}
	valid.Add = without(c.Add, func(f HeaderField) bool { return invalid("add", f) })
	valid.Set = without(c.Set, func(f HeaderField) bool { return invalid("set", f) })
	valid.Remove = without(c.Remove, func(name string) bool { return invalid("remove", HeaderField{Name: name}) })
	return valid, problems
}

// without returns the items of list for which invalid returns false. It calls invalid once for each item. If
// all remain, it returns list itself, because a router checks the lists of many routes.
func without[T any](list []T, invalid func(T) bool) []T {
	i := slices.IndexFunc(list, invalid)
	if i < 0 {
		return list
	}
	return append(slices.Clone(list[:i]), slices.DeleteFunc(slices.Clone(list[i+1:]), invalid)...)
}

// connectionFields returns the names, in lower case, of the header fields that belong to a
// connection or delimit a message. A [HeaderMutation] must not change them.
func connectionFields() []string {
	return []string{
		"connection", "content-length", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
		"te", "trailer", "transfer-encoding", "upgrade",
	}
}

// validate returns an error if f cannot be changed by a [HeaderMutation]. set is true if the change
// replaces all values of the field.
func (f HeaderField) validate(set bool) error {
	name := strings.ToLower(f.Name)
	switch {
	case name == "" || strings.ContainsFunc(name, func(c rune) bool { return !isTokenChar(c) }):
		return errors.New("name must consist of letters, digits and !#$%&'*+-.^_`|~")
	case slices.Contains(connectionFields(), name):
		return errors.New("belongs to the connection, not to the message")
	case strings.ContainsFunc(f.Value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
		return errors.New("the value has a control character") // without the value, which may be a credential
	case name == "host" && !set:
		return errors.New("can only be set, not added or removed")
	case name == "host" && !authority.Valid(f.Value):
		return fmt.Errorf("value %q is not a host with an optional port", f.Value)
	}
	return nil
}

// isTokenChar reports whether the character c may occur in a header name, which consists of
// the characters tchar of RFC 9110.
func isTokenChar(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c != 0 && strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}

// bodyAccessor reads the field Body of messages of type T, by reflection, because this package does not
// know the type; see [AtEnd]. A layer creates its bodyAccessor once, because the search for the field
// is slow.
type bodyAccessor[T any] struct {
	index int  // the index of the field Body
	has   bool // whether T has the field; if false, body returns nil
}

// bodyAccessorOf returns the bodyAccessor for messages of type T.
func bodyAccessorOf[T any]() bodyAccessor[T] {
	index, ok := bodyField(reflect.TypeFor[T]())
	return bodyAccessor[T]{index, ok}
}

// body returns the body of message, or nil if there is none.
func (s bodyAccessor[T]) body(message T) io.ReadCloser {
	// A type without a body, or a message that is nil.
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

// observed returns the wrapper that [ObserveBody] has put around rsp's body, or nil if there is none. A
// layer may replace the wrapper's inner ReadCloser before it returns rsp, for example to add a text to
// the errors of Read, without another wrapper around the body.
func (s bodyAccessor[T]) observed(rsp T) *observedBody {
	// The body is wrapped in different types, depending on what the response can do.
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

// CloseBody closes the body of message, which is a request or a response. It does nothing if
// messages of type T carry no body (see [AtEnd]), or if message's body is nil.
func CloseBody[T any](message T) { bodyAccessorOf[T]().closeBody(message) }

// closeBody closes the body of message and returns true. If there is no body, it returns false.
func (s bodyAccessor[T]) closeBody(message T) bool {
	body := s.body(message)
	if body == nil {
		return false
	}
	_ = body.Close()
	return true
}
