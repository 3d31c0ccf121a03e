package file

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// asYAML rewrites what strings of JSON may have and the YAML package does not
// know: \/, a character in two \u escapes, and bare ones that it refuses, or takes
// for the end of a line. Lines stay what they are; columns behind such a thing do
// not. What is not JSON is returned as it is. A byte order mark before it, as
// Windows writes it, does not count.
func asYAML(data []byte) []byte {
	text := bytes.TrimPrefix(data, []byte("\ufeff"))
	odd := func(c rune) bool { return c == '\\' || escapedOnly(c) }
	if !bytes.ContainsFunc(text, odd) || !json.Valid(text) {
		return data
	}
	data = text
	out := make([]byte, 0, len(data))
	for len(data) > 0 {
		switch c := surrogates(data); {
		case c != utf8.RuneError:
			out, data = utf8.AppendRune(out, c), data[12:]
		case data[0] != '\\':
			c, size := utf8.DecodeRune(data)
			if escapedOnly(c) {
				out = fmt.Appendf(out, `\u%04x`, c)
			} else {
				out = append(out, data[:size]...)
			}
			data = data[size:]
		case data[1] == '/':
			out, data = append(out, '/'), data[2:]
		default: // an escape that both know
			out, data = append(out, data[:2]...), data[2:]
		}
	}
	return out
}

// escapedOnly reports whether YAML has c nowhere but in an escape, or as the end of
// a line, which takes the blanks beside it away.
func escapedOnly(c rune) bool {
	return 0x7f <= c && c <= 0x9f || c == 0x2028 || c == 0x2029 || c == 0xfffe || c == 0xffff
}

// surrogates returns the character that is written as two \u escapes at the
// beginning of text, or utf8.RuneError.
func surrogates(text []byte) rune {
	if len(text) < 12 || text[0] != '\\' || text[1] != 'u' || text[6] != '\\' || text[7] != 'u' {
		return utf8.RuneError
	}
	high, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	low, err2 := strconv.ParseUint(string(text[8:12]), 16, 16)
	if err != nil || err2 != nil {
		return utf8.RuneError
	}
	return utf16.DecodeRune(rune(high), rune(low))
}
