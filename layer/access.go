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

// Accessor reads requests and responses for protocol-neutral layers such as routes and
// tap. Package httplayer implements it for *http.Request and *http.Response. Its
// methods do not modify the messages and are safe for concurrent use.
type Accessor[Req, Rsp any] interface { //nolint:interfacebloat // the parts of a message
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

	// Complete is the [Completion] of the protocol.
	Complete(ctx context.Context, rsp Rsp, o Observer) Rsp
}

// Header gives read access to header or trailer fields. Names are case-insensitive. If
// it also has the method Values(name string) []string, as [net/http.Header] does,
// reading all values of one name is cheaper.
type Header interface {
	Get(name string) string         // the first value, or ""
	All() iter.Seq2[string, string] // every name and value, a pair for each value
}

// Editor changes messages and creates responses for protocol-neutral layers. Package
// httplayer implements it for net/http. Its methods are safe for concurrent use.
type Editor[Req, Rsp any] interface {
	// EditRequest returns a copy of req with the changed header fields and the same
	// body. It does not modify req.
	EditRequest(req Req, c HeaderMutation) Req

	// EditResponse returns rsp with the changed header fields. It may modify rsp or copy it.
	EditResponse(rsp Rsp, c HeaderMutation) Rsp

	// NewResponse returns a new response to req. It does not read the body of req, and
	// closes it if the protocol requires that.
	NewResponse(req Req, a DirectResponse) Rsp

	// TeeRequest returns req with a body that keeps up to limit bytes while they are read. It
	// calls done once, on the goroutine of the reader. ok is true if the body was read to its
	// end and fits limit; then copied is a copy of the request whose context never ends. For a
	// request without a body, done is called before TeeRequest returns.
	TeeRequest(req Req, limit int64, done func(copied Req, ok bool)) Req
}

// HeaderMutation is a change of header fields. Add is applied first, then Set, then Remove, as
// in linkerd's proxy. The zero value changes nothing. Names are case-insensitive.
//
// Setting Host changes the authority of a request. Fields of the connection, such
// as Connection, Transfer-Encoding, Content-Length and Upgrade, are invalid.
type HeaderMutation struct {
	Add    []HeaderField // one more value each
	Set    []HeaderField // replaces all values of the name
	Remove []string      // names
}

// HeaderField is the name of a header field and one value.
type HeaderField struct{ Name, Value string }

// DirectResponse is the argument of Editor.NewResponse.
type DirectResponse struct {
	Status  int           // the HTTP status
	GRPC    uint32        // the status for gRPC requests; 0 is the one that corresponds to Status
	Message string        // the body of the response, or the message of the gRPC status
	Header  []HeaderField // in addition to those of the protocol
}

// Empty reports whether c changes nothing.
func (c HeaderMutation) Empty() bool { return len(c.Add) == 0 && len(c.Set) == 0 && len(c.Remove) == 0 }

// Validate returns the errors of Valid, joined, or nil.
func (c HeaderMutation) Validate() error {
	_, problems := c.Valid()
	return errors.Join(problems...)
}

// Valid returns c without its invalid parts, and an error for each: a name that
// is not a token, a value with a control character, a field of the connection,
// and a Host that is added, removed, or not a host with an optional port.
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

// connectionFields returns the header fields that belong to a connection or delimit a
// message. Only the sender of a message writes them.
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
		return errors.New("name must consist of letters, digits and !#$%&'*+-.^_`|~")
	case slices.Contains(connectionFields(), name):
		return errors.New("belongs to the connection, not to the message")
	case strings.ContainsFunc(f.Value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
		return fmt.Errorf("value %q has a control character", f.Value)
	case name == "host" && !set:
		return errors.New("can only be set, not added or removed")
	case name == "host" && !authority.Valid(f.Value):
		return fmt.Errorf("value %q is not a host with an optional port", f.Value)
	}
	return nil
}

// isTokenChar reports whether c may be part of a header name (tchar of RFC 9110).
func isTokenChar(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c != 0 && strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}

// bodyAccessor reads the field Body of messages that have one, see [AtEnd]. It is
// created once per layer.
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

// observed returns the wrapper that ObserveBody put around the body of rsp, or nil. A
// layer may replace the reader inside the wrapper until it returns rsp.
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

// CloseBody closes the body of a request or response if its type has one, see [AtEnd].
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
