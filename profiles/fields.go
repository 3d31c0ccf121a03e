package profiles

import (
	"errors"
	"fmt"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/secret"
	"github.com/gotower/gotower/layer"
)

type methodIs string

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
func isToken(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

type headerCondition struct {
	name  string // in canonical form, because net/http allocates for other forms
	value stringMatcher
}

func (h Header) compile() (matcher, error) {
	return compileField("header", h.Name, h.Value)
}

func compileField(kind, name string, m StringMatch) (headerCondition, error) {
	if !isToken(name) {
		return headerCondition{}, fmt.Errorf("%s %q: the name is not a token", kind, name)
	}
	value, err := compileStringMatch(m, false)
	if err != nil {
		return headerCondition{}, fmt.Errorf("%s %q: %w", kind, name, err)
	}
	return headerCondition{textproto.CanonicalMIMEHeaderKey(name), value}, nil
}

func (h headerCondition) holds(f facts) bool {
	if multi, ok := f.header.(interface{ Values(name string) []string }); ok {
		return slices.ContainsFunc(multi.Values(h.name), h.value.holds)
	}
	// The first value is cheap to read and often decides.
	if first := f.header.Get(h.name); first != "" && h.value.holds(first) {
		return true
	}
	return h.holdsForOne(f.header)
}

// holdsForOne reports whether one of several values of the header field satisfies the
// condition. It is a separate function, because it allocates.
func (h headerCondition) holdsForOne(fields layer.Header) bool {
	for name, v := range fields.All() {
		if strings.EqualFold(name, h.name) && h.value.holds(v) {
			return true
		}
	}
	return false
}

func (headerCondition) needs() needs { return needHeader }

// String describes the condition. It hides the value of a field that may have credentials.
func (h headerCondition) String() string {
	if h.value.kind != matchPresent && secret.Field(strings.ToLower(h.name)) {
		return fmt.Sprintf("header %q %s", h.name, secret.Withheld)
	}
	return fmt.Sprintf("header %q %v", h.name, h.value)
}

type queryCondition struct {
	name  string
	value stringMatcher
}

func (q Query) compile() (matcher, error) {
	if q.Name == "" {
		return nil, errors.New("query: the name of the parameter is empty")
	}
	value, err := compileStringMatch(q.Value, false)
	if err != nil {
		return nil, fmt.Errorf("query parameter %q: %w", q.Name, err)
	}
	return queryCondition{q.Name, value}, nil
}

// holds reports whether the query has the parameter, and one of the values of the parameter
// satisfies the condition. It parses the query as url.ParseQuery does, but allocates no
// map.
func (q queryCondition) holds(f facts) bool {
	for rest := f.query; rest != ""; {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		if pair == "" || strings.IndexByte(pair, ';') >= 0 {
			continue
		}
		encoded, value, _ := strings.Cut(pair, "=")
		if name, err := url.QueryUnescape(encoded); err != nil || name != q.name {
			continue
		}
		if value, err := url.QueryUnescape(value); err == nil && q.value.holds(value) {
			return true
		}
	}
	return false
}

func (queryCondition) needs() needs     { return needQuery }
func (q queryCondition) String() string { return fmt.Sprintf("query parameter %q %v", q.name, q.value) }

type hostIs stringMatcher

// compile compiles the condition. It returns an error if the value cannot be a host, for
// example because it has a port.
func (h Host) compile() (matcher, error) {
	if t, ok := h.Value.(Exact); ok {
		_, err := netip.ParseAddr(string(t))
		if t == "" || err != nil && strings.ContainsAny(string(t), ":[]/ ") {
			return nil, fmt.Errorf("host %q is not a name or an address without port and brackets", string(t))
		}
		h.Value = Exact(strings.TrimSuffix(string(t), "."))
	}
	value, err := compileStringMatch(h.Value, true)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return hostIs(value), nil
}

func (h hostIs) holds(f facts) bool {
	host := hostname(f.authority)
	switch {
	case host == "":
		return false
	case h.kind == matchExact:
		return strings.EqualFold(host, h.want)
	case h.kind == matchPrefix:
		return len(host) >= len(h.want) && strings.EqualFold(host[:len(h.want)], h.want)
	case h.kind == matchSuffix:
		n := len(host) - len(h.want)
		return n > 0 && strings.EqualFold(host[n:], h.want)
	}
	return stringMatcher(h).holds(host)
}

func (hostIs) needs() needs     { return needAuthority }
func (h hostIs) String() string { return "host " + stringMatcher(h).String() }

// hostname returns authority without its port, the brackets of an IPv6 address and a final
// dot.
func hostname(authority string) string {
	if i := strings.LastIndexByte(authority, ':'); i > strings.LastIndexByte(authority, ']') {
		authority = authority[:i]
	}
	if n := len(authority); n >= 2 && authority[0] == '[' && authority[n-1] == ']' {
		return authority[1 : n-1]
	}
	return strings.TrimSuffix(authority, ".")
}

// hasName reports whether match returns true for the name of one of the fields.
func hasName(fields layer.Header, match func(name string) bool) bool {
	if h, ok := fields.(interface {
		HasName(func(name string) bool) bool
	}); ok {
		return h.HasName(match)
	}
	return hasNameOf(fields, match)
}

// hasNameOf reports whether match returns true for the name of one of the fields. It iterates over
// all fields, for a type without a method HasName. It is a separate function, because it allocates.
func hasNameOf(fields layer.Header, match func(name string) bool) bool {
	for name := range fields.All() {
		if match(name) {
			return true
		}
	}
	return false
}
