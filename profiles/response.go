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

// response is what conditions know of a response. Of one of which nothing but
// the head has come trailer is nil; of one that ended header is nil, because
// by then all is decided that it could say.
type response struct {
	status          int
	header, trailer layer.Header
}

// truth is whether a condition holds.
type truth uint8

const (
	no truth = iota
	yes
	open // the trailers will say
)

func truthOf(holds bool) truth {
	if holds {
		return yes
	}
	return no
}

// responseMatcher is a compiled condition on a response.
type responseMatcher interface {
	holds(r response) truth
}

// responseLeaf is a Match without members, on a response.
type responseLeaf interface {
	compileResponse() (responseMatcher, error)
}

// compileResponse is compileMatch for responses. All and Any without a valid
// member are invalid here, which is how linkerd has it.
func compileResponse(m Match, drop func(error)) (responseMatcher, error) {
	switch m := m.(type) {
	case nil:
		return nil, errNoCondition
	case All:
		return compileResponses(m, no, drop)
	case Any:
		return compileResponses(m, yes, drop)
	case Not:
		member, err := compileResponse(m.Match, drop)
		if err != nil {
			return nil, fmt.Errorf("not: %w", err)
		}
		return responseNot{member}, nil
	case responseLeaf:
		return m.compileResponse()
	}
	return nil, fmt.Errorf("%T is no condition on a response", m)
}

func compileResponses(members []Match, decisive truth, drop func(error)) (responseMatcher, error) {
	joined := responseJoin{decisive: decisive}
	for _, m := range members {
		compiled, err := compileResponse(m, drop)
		if err != nil {
			drop(fmt.Errorf("member of a response class: %w", err))
			continue
		}
		joined.members = append(joined.members, compiled)
	}
	if len(joined.members) == 0 {
		return nil, errors.New("no valid member")
	}
	return joined, nil
}

// responseJoin is All or Any: the first member whose answer is decisive ends it.
type responseJoin struct {
	members  []responseMatcher
	decisive truth // no or yes
}

func (j responseJoin) holds(r response) truth {
	all := yes - j.decisive
	for _, m := range j.members {
		switch m.holds(r) {
		case j.decisive:
			return j.decisive
		case open:
			all = open
		case no, yes:
		}
	}
	return all
}

type responseNot struct{ member responseMatcher }

func (n responseNot) holds(r response) truth {
	if a := n.member.holds(r); a != open {
		return yes - a
	}
	return open
}

func (s Status) compileResponse() (responseMatcher, error) {
	if s.Min < 100 || s.Min > 999 || s.Max < 100 || s.Max > 999 {
		return nil, fmt.Errorf("status %d to %d is not within 100 to 999", s.Min, s.Max)
	}
	return s, nil
}

func (s Status) holds(r response) truth { return truthOf(s.Min <= r.status && r.status <= s.Max) }

func (g GRPCStatus) compileResponse() (responseMatcher, error) {
	if g.Min > g.Max || g.Max > maxGRPC {
		return nil, fmt.Errorf("gRPC status %d to %d is no range within 0 to %d", g.Min, g.Max, maxGRPC)
	}
	return g, nil
}

func (g GRPCStatus) holds(r response) truth {
	fields := r.trailer
	if fields == nil {
		fields = r.header
	}
	code, ok := grpcCode(fields)
	if !ok && r.trailer == nil {
		return open
	}
	return truthOf(ok && g.Min <= code && code <= g.Max)
}

// trailerHas is a Trailer made ready.
type trailerHas struct{ headerHas }

func (t Trailer) compileResponse() (responseMatcher, error) {
	if !isToken(t.Name) {
		return nil, fmt.Errorf("trailer %q: the name is not a token", t.Name)
	}
	value, err := compileText(t.Value, false)
	if err != nil {
		return nil, fmt.Errorf("trailer %q: %w", t.Name, err)
	}
	return trailerHas{headerHas{textproto.CanonicalMIMEHeaderKey(t.Name), value}}, nil
}

func (t trailerHas) holds(r response) truth {
	fields := r.trailer
	if fields == nil {
		if _, ok := grpcCode(r.header); !ok {
			return open
		}
		fields = r.header // the response is nothing but trailers
	}
	return truthOf(t.headerHas.holds(facts{header: fields}))
}

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
