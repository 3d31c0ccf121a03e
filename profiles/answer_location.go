package profiles

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// place is what a URI says of where to ask, and for what.
type place struct {
	scheme      string
	host        string // an IPv6 address without brackets
	port        uint16 // 0: the scheme's own
	path, query string
}

// placeOf returns the place that a request came to, and false if its host
// cannot be told from its authority. A scheme that a client made up is as good
// as none, which is http.
func placeOf(scheme, authority, path, query string) (place, bool) {
	if scheme != "https" {
		scheme = "http"
	}
	p := place{scheme: scheme, path: path, query: query}
	host, port, ok := splitAuthority(authority)
	p.host, p.port = host, port
	return p.plain(), ok
}

// splitAuthority parts a host from its port, which need not be there. A host
// is a name or an address, and nothing that would be read as something else in
// a Location.
func splitAuthority(authority string) (host string, port uint16, ok bool) {
	host = authority
	if h, number, err := net.SplitHostPort(authority); err == nil {
		n, err := strconv.ParseUint(number, 10, 16)
		if number != "" && err != nil {
			return "", 0, false
		}
		host, port = h, uint16(n)
	} else if strings.HasPrefix(authority, "[") && strings.HasSuffix(authority, "]") {
		host = authority[1 : len(authority)-1]
	}
	return host, port, isName(host) || isAddress(host)
}

// to is the place where the redirect sends requests that come to p.
func (r Redirect) to(p place) place {
	if r.Scheme != "" {
		p.scheme, p.port = r.Scheme, 0
	}
	if r.Port != 0 {
		p.port = r.Port
	}
	if r.Host != "" {
		p.host = r.Host
	}
	switch {
	case r.Path != "":
		path, query, has := strings.Cut(r.Path, "?")
		p.path = path
		if has {
			p.query = query
		}
	case r.OldPrefix != "":
		p.path = r.prefixed(p.path)
	}
	return p.plain()
}

// prefixed is path with the other prefix, if it has the old one.
func (r Redirect) prefixed(path string) string {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(r.OldPrefix, "/"))
	if !ok || rest != "" && rest[0] != '/' {
		return path
	}
	if rest == "" {
		if r.NewPrefix == "" {
			return "/"
		}
		return r.NewPrefix
	}
	return strings.TrimSuffix(r.NewPrefix, "/") + rest
}

// plain is p without a port that need not be said.
func (p place) plain() place {
	if p.scheme == "http" && p.port == 80 || p.scheme == "https" && p.port == 443 {
		p.port = 0
	}
	return p
}

// is reports whether two places are the same.
func (p place) is(other place) bool {
	sameHost := strings.EqualFold(p.host, other.host)
	p.host, other.host = "", ""
	return sameHost && p == other
}

// String is the URI. Characters that have no place in one, or another meaning
// there than here, are escaped.
func (p place) String() string {
	b := make([]byte, 0, len("https://[]:65535?")+len(p.host)+len(p.path)+len(p.query))
	b = append(append(b, p.scheme...), "://"...)
	if addr, err := netip.ParseAddr(p.host); err == nil && addr.Is6() {
		b = append(append(append(b, '['), p.host...), ']')
	} else {
		b = append(b, p.host...)
	}
	if p.port != 0 {
		b = strconv.AppendUint(append(b, ':'), uint64(p.port), 10)
	}
	if !strings.HasPrefix(p.path, "/") { // OPTIONS * and CONNECT have none
		p.path = "/"
	}
	b = appendEscaped(b, p.path, true)
	if p.query != "" {
		b = appendEscaped(append(b, '?'), p.query, false)
	}
	return string(b)
}

// appendEscaped appends a path or a query that is escaped already, with % where
// there should have been one.
func appendEscaped(b []byte, s string, path bool) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || strings.IndexByte("\"#<>\\^`{|}", c) >= 0 || path && c == '?' || c == '%' && !isEscape(s[i:]) {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}

// isEscape reports whether s begins with a character that is escaped.
func isEscape(s string) bool { return len(s) > 2 && isHex(s[1]) && isHex(s[2]) }

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= lower(c) && lower(c) <= 'f' }
