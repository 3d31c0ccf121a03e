package profiles

import (
	"errors"
	"fmt"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/secret"
	"github.com/gotower/gotower/layer"
)

type methodIs string

func (m Method) compile() (matcher, error) {
	if m == "" {
		return nil, errors.New("method is empty")
	}
	if !isToken(string(m)) {
		return nil, fmt.Errorf("method %q is not a token", string(m))
	}
	return methodIs(m), nil
}

func (m methodIs) holds(f facts) bool { return f.method == string(m) }
func (methodIs) needs() needs         { return 0 }
func (m methodIs) String() string     { return fmt.Sprintf("method %q", string(m)) }

// isToken reports whether s is a token of HTTP, as methods and the names of
// header fields are.
func isToken(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

type headerHas struct {
	name  string // as net/http writes it: others cost an allocation there
	value text
}

func (h Header) compile() (matcher, error) {
	if !isToken(h.Name) {
		return nil, fmt.Errorf("header %q: the name is not a token", h.Name)
	}
	value, err := compileText(h.Value, false)
	if err != nil {
		return nil, fmt.Errorf("header %q: %w", h.Name, err)
	}
	return headerHas{textproto.CanonicalMIMEHeaderKey(h.Name), value}, nil
}

func (h headerHas) holds(f facts) bool {
	if multi, ok := f.header.(interface{ Values(name string) []string }); ok {
		return slices.ContainsFunc(multi.Values(h.name), h.value.holds)
	}
	// The first value often decides, and costs no walk over all fields.
	if first := f.header.Get(h.name); first != "" && h.value.holds(first) {
		return true
	}
	return h.holdsForOne(f.header)
}

// holdsForOne allocates, so it is a function of its own.
func (h headerHas) holdsForOne(fields layer.Header) bool {
	for name, v := range fields.All() {
		if strings.EqualFold(name, h.name) && h.value.holds(v) {
			return true
		}
	}
	return false
}

func (headerHas) needs() needs { return needHeader }

// String says nothing that somebody could be let in by.
func (h headerHas) String() string {
	if h.value.kind != textPresent && secret.Field(strings.ToLower(h.name)) {
		return fmt.Sprintf("header %q %s", h.name, secret.Withheld)
	}
	return fmt.Sprintf("header %q %v", h.name, h.value)
}

type hostIs text

// compile turns away what no host can be: somebody wrote an authority.
func (h Host) compile() (matcher, error) {
	if t, ok := h.Value.(Exact); ok {
		_, err := netip.ParseAddr(string(t))
		if t == "" || err != nil && strings.ContainsAny(string(t), ":[]/ ") {
			return nil, fmt.Errorf("host %q is not a host: it has no port and no brackets", string(t))
		}
	}
	value, err := compileText(h.Value, true)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return hostIs(value), nil
}

func (h hostIs) holds(f facts) bool {
	host := hostname(f.authority)
	if host == "" {
		return false
	}
	switch h.kind {
	case textExact:
		return equalFold(host, h.want)
	case textPrefix:
		return len(host) >= len(h.want) && equalFold(host[:len(h.want)], h.want)
	case textRegex, textPresent:
	}
	return text(h).holds(host)
}

func (hostIs) needs() needs     { return needAuthority }
func (h hostIs) String() string { return "host " + text(h).String() }

// hostname returns an authority without its port, and an IPv6 address without
// its brackets.
func hostname(authority string) string {
	if i := strings.LastIndexByte(authority, ':'); i > strings.LastIndexByte(authority, ']') {
		authority = authority[:i]
	}
	if n := len(authority); n >= 2 && authority[0] == '[' && authority[n-1] == ']' {
		return authority[1 : n-1]
	}
	return authority
}

// equalFold compares without regard to the case of ASCII letters: others have
// none in the name of a host.
func equalFold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
