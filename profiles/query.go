package profiles

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

type queryHas struct {
	name  string
	value text
}

func (q Query) compile() (matcher, error) {
	if q.Name == "" {
		return nil, errors.New("query: the name of the parameter is empty")
	}
	value, err := compileText(q.Value, false)
	if err != nil {
		return nil, fmt.Errorf("query parameter %q: %w", q.Name, err)
	}
	return queryHas{q.Name, value}, nil
}

// holds reads the query as url.ParseQuery does, without its map.
func (q queryHas) holds(f facts) bool {
	for rest := f.query; rest != ""; {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		name, value, _ := strings.Cut(pair, "=")
		left, ok := cutDecoded(name, q.name)
		if !ok || left != "" || strings.IndexByte(pair, ';') >= 0 || !wellEncoded(value) {
			continue
		}
		if q.holdsFor(value) {
			return true
		}
	}
	return false
}

// holdsFor compares a value that is well encoded. Only expressions need it
// decoded as a whole.
func (q queryHas) holdsFor(encoded string) bool {
	switch q.value.kind {
	case textExact:
		left, ok := cutDecoded(encoded, q.value.want)
		return ok && left == ""
	case textPrefix:
		_, ok := cutDecoded(encoded, q.value.want)
		return ok
	case textRegex:
		value, err := url.QueryUnescape(encoded)
		return err == nil && q.value.holds(value)
	case textPresent:
	}
	return true
}

func (queryHas) needs() needs     { return needQuery }
func (q queryHas) String() string { return fmt.Sprintf("query parameter %q %v", q.name, q.value) }

// cutDecoded returns what follows prefix in the encoded text s, which has it
// decoded.
func cutDecoded(s, prefix string) (rest string, ok bool) {
	for i := range len(prefix) {
		c, n := decodeByte(s)
		if n == 0 || c != prefix[i] {
			return s, false
		}
		s = s[n:]
	}
	return s, true
}

// decodeByte returns the first byte of s, decoded, and how long it is encoded:
// 0 at the end of s, and if it is badly encoded.
func decodeByte(s string) (byte, int) {
	switch {
	case s == "":
		return 0, 0
	case s[0] == '+':
		return ' ', 1
	case s[0] != '%':
		return s[0], 1
	case len(s) < 3:
		return 0, 0
	}
	high, low := hexDigit(s[1]), hexDigit(s[2])
	if high < 0 || low < 0 {
		return 0, 0
	}
	return byte(high<<4 | low), 3
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// wellEncoded reports whether each '%' begins an encoded byte.
func wellEncoded(s string) bool {
	for {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			return true
		}
		_, n := decodeByte(s[i:])
		if n == 0 {
			return false
		}
		s = s[i+n:]
	}
}
