package profiles

import (
	"errors"
	"fmt"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/gotower/gotower/internal/secret"
)

// methodIs is the compiled form of [Method].
type methodIs string

// compile checks that m is a token, as RFC 9110 requires.
func (m Method) compile() (matcher, error) {
	if !isToken(string(m)) {
		return nil, fmt.Errorf("method %q is not a token", string(m))
	}
	return methodIs(m), nil
}

func (m methodIs) holds(f facts) bool { return f.method == string(m) }
func (methodIs) needs() needs         { return 0 }
func (m methodIs) String() string     { return fmt.Sprintf("method %q", string(m)) }

// isToken reports whether s is an HTTP token (RFC 9110), such as a method or a field name.
func isToken(s string) bool { return httpguts.ValidHeaderFieldName(s) }

// headerCondition is the compiled form of [Header].
type headerCondition struct {
	name      string // in canonical form, because net/http allocates for other forms
	value     stringMatcher
	anyLine   bool   // value applies to each line, and not to the joined lines
	separator string // joins the lines of the field
}

// compile checks the name and compiles the condition on the value.
func (h Header) compile() (matcher, error) {
	return compileField("header", h)
}

// compileField compiles a condition on a field of a header or trailer. kind is "header" or "trailer", for errors.
func compileField(kind string, h Header) (*headerCondition, error) {
	if !isToken(h.Name) {
		return nil, fmt.Errorf("%s %q: the name is not a token", kind, h.Name)
	}
	value, err := compileStringMatch(h.Value, false) // case counts
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", kind, h.Name, err)
	}
	c := &headerCondition{name: textproto.CanonicalMIMEHeaderKey(h.Name), value: value, anyLine: h.AnyLine, separator: ", "}
	if c.name == "Cookie" {
		c.separator = "; " // HTTP/2 splits it there (RFC 9113)
	}
	return c, nil
}

// holds reports whether the request has the header field, and its value satisfies the condition. With
// anyLine, one of the field's lines must satisfy it, and otherwise the joined lines.
func (h *headerCondition) holds(f facts) bool {
	// A header may consist of several lines.
	lines := f.header.Values(h.name)
	switch {
	case len(lines) == 0:
		return false
	// Each line is a value of its own, such as a cookie.
	case h.anyLine:
		return slices.ContainsFunc(lines, h.value.holds)
	case len(lines) == 1:
		return h.value.holds(lines[0])
	}
	// Several lines are equivalent to one with all values (RFC 9110, section 5.3).
	return h.value.holds(strings.Join(lines, h.separator))
}

func (*headerCondition) needs() needs { return needHeader }

// String describes the condition. It hides a value that may contain credentials.
func (h *headerCondition) String() string {
	if h.value.kind != matchPresent && secret.Field(h.name) {
		return fmt.Sprintf("header %q %s", h.name, secret.Withheld)
	}
	return fmt.Sprintf("header %q %v", h.name, &h.value)
}

// queryCondition is the compiled form of [Query].
type queryCondition struct {
	name  string
	value stringMatcher
}

// compile checks the name and compiles the condition on the value.
func (q Query) compile() (matcher, error) {
	if q.Name == "" {
		return nil, errors.New("query: the name of the parameter is empty")
	}
	value, err := compileStringMatch(q.Value, false) // case counts
	if err != nil {
		return nil, fmt.Errorf("query parameter %q: %w", q.Name, err)
	}
	return &queryCondition{q.Name, value}, nil
}

// holds reports whether the query contains the parameter, and one of its values satisfies the
// condition. It parses the query as url.ParseQuery does, but allocates no map.
func (q *queryCondition) holds(f facts) bool {
	for rest := f.query; rest != ""; {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		// As url.ParseQuery, which takes a semicolon for a mistake.
		if pair == "" || strings.IndexByte(pair, ';') >= 0 {
			continue
		}
		encoded, value, _ := strings.Cut(pair, "=")
		// A name that is encoded invalidly is ignored.
		if name, err := url.QueryUnescape(encoded); err != nil || name != q.name {
			continue
		}
		if value, err := url.QueryUnescape(value); err == nil && q.value.holds(value) {
			return true
		}
	}
	return false
}

func (*queryCondition) needs() needs { return needQuery }
func (q *queryCondition) String() string {
	return fmt.Sprintf("query parameter %q %v", q.name, &q.value)
}

// hostIs is the compiled form of [Host].
type hostIs struct{ stringMatcher }

// compile compiles the condition, or returns an error if the value cannot be a host, for example
// because it includes a port.
func (h Host) compile() (matcher, error) {
	// Only an Exact can be checked as a whole.
	if t, ok := h.Value.(Exact); ok {
		_, err := netip.ParseAddr(string(t))
		if t == "" || err != nil && strings.ContainsAny(string(t), ":[]/ ") {
			return nil, fmt.Errorf("host %q is not a name or an address without port and brackets", string(t))
		}
		// hostname removes the final dot of a request's host, so it must not be in the condition.
		h.Value = Exact(strings.TrimSuffix(string(t), "."))
	}
	value, err := compileStringMatch(h.Value, true) // ignores case
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return &hostIs{value}, nil
}

// holds reports whether the host, without its port, satisfies the condition. Case does not matter.
func (h *hostIs) holds(f facts) bool {
	host := hostname(f.authority)
	return host != "" && h.stringMatcher.holds(host)
}

func (*hostIs) needs() needs { return needAuthority }

// String returns the condition, for explanations.
func (h *hostIs) String() string {
	value := h.stringMatcher
	value.fold = false // always the case for a host
	return "host " + value.String()
}

// sourceIn is the compiled form of [SourceIP].
type sourceIn netip.Prefix

// compile returns an error for the zero Prefix, which contains no address.
func (s SourceIP) compile() (matcher, error) {
	if !s.Prefix.IsValid() {
		return nil, errors.New("source: the range of addresses is not valid")
	}
	return sourceIn(s.Prefix), nil
}

// holds reports whether the client's address is in the range. It is not if the address is unknown.
func (s sourceIn) holds(f facts) bool { return netip.Prefix(s).Contains(f.source) }
func (sourceIn) needs() needs         { return needSource }
func (s sourceIn) String() string     { return "source in " + netip.Prefix(s).String() }

// hostname returns authority without its port, the brackets of an IPv6 address and a final
// dot.
func hostname(authority string) string {
	// A colon within the brackets belongs to the IPv6 address.
	if i := strings.LastIndexByte(authority, ':'); i > strings.LastIndexByte(authority, ']') {
		authority = authority[:i]
	}
	if n := len(authority); n >= 2 && authority[0] == '[' && authority[n-1] == ']' {
		return authority[1 : n-1]
	}
	return strings.TrimSuffix(authority, ".")
}
