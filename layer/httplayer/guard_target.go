package httplayer

import (
	"bytes"
	"slices"
)

// guardTarget is the beginning of an absolute target, and the Host beside it.
// They are kept until the head ends.
type guardTarget struct {
	target, host guardText
	slashes      int
}

// guardText is a name with a scheme and a port at most.
type guardText struct {
	text [300]byte
	n    int
}

func (t *guardText) add(c byte) bool {
	if t.n == len(t.text) {
		return false
	}
	t.text[t.n] = c
	t.n++
	return true
}

func (t *guardTarget) reset() { t.target.n, t.host.n, t.slashes = 0, 0, 0 }

// whole reports whether scheme and authority end before c.
func (t *guardTarget) whole(c byte) bool {
	if c == '/' {
		t.slashes++
	}
	return c == '?' || c == '#' || t.slashes > 2
}

// judge compares the two. A port that is the scheme's own may be left out of
// either.
func (t *guardTarget) judge(hasHost bool) GuardReason {
	target := t.target.text[:t.target.n]
	scheme, authority, ok := bytes.Cut(target, []byte("://"))
	switch {
	case !ok || len(scheme) == 0 || len(authority) == 0 || slices.Contains(scheme, '/'):
		return BadRequestLine
	case !isAuthority(authority):
		return BadHost
	case hasHost && !bytes.EqualFold(withoutPort(scheme, authority), withoutPort(scheme, t.host.text[:t.host.n])):
		return HostMismatch
	}
	return 0
}

// isAuthority reports whether a is a host and a port: user information, too,
// would name another host to some.
func isAuthority(a []byte) bool {
	return !slices.ContainsFunc(a, func(c byte) bool { return !isHost(c) })
}

// withoutPort cuts off the port that the scheme implies.
func withoutPort(scheme, authority []byte) []byte {
	switch {
	case bytes.EqualFold(scheme, []byte("http")):
		return bytes.TrimSuffix(authority, []byte(":80"))
	case bytes.EqualFold(scheme, []byte("https")):
		return bytes.TrimSuffix(authority, []byte(":443"))
	}
	return authority
}
