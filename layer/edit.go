package layer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/authority"
)

// Editor is how layers change messages, and answer in the place of a service,
// without knowing their protocol: httplayer.Editor does it for net/http. Its
// methods are safe for concurrent use.
type Editor[Req, Rsp any] interface {
	// Request returns req with other header fields. Req itself stays as it
	// was, so that a request that is refused below is untouched; its body is
	// the same one.
	EditRequest(req Req, c HeaderMutation) Req

	// Response returns rsp with other header fields. It is the caller's, and
	// may be changed in place.
	EditResponse(rsp Rsp, c HeaderMutation) Rsp

	// Reply makes a response to req that nobody was asked for. The body of req
	// is not read. It is closed if the protocol has that done by who answers.
	NewResponse(req Req, a DirectResponse) Rsp

	// Fork returns req with a body that keeps up to limit bytes of what is read
	// of it, and calls whole once, on the goroutine of whoever reads: with a
	// copy of the request when its body was read to the end, or false when
	// there will be none, because it is larger than limit, or was not read to
	// its end. The copy has a context of its own that never ends. A request
	// without a body is copied at once. Nothing waits, or is read, for the copy.
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

// Valid returns c without the pieces that no message can have, and an error
// for each of those: a name that is no token, a value with a line break or
// another control character, a field of the connection, a Host that is added,
// removed, or no host with an optional port. C stays as it is.
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

// connectionFields belong to a connection, or frame a message: whoever sends it
// writes them.
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
