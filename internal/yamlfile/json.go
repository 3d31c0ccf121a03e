package yamlfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// FromJSON rewrites the parts of JSON strings that the YAML package does not read:
// \/, a character in two \u escapes, and characters that it rejects or takes for the
// end of a line. Lines stay the same. Columns after such a part do not. Data that is
// not JSON is returned unchanged. A byte order mark is removed from JSON.
func FromJSON(data []byte) []byte {
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
		default: // an escape in both formats
			out, data = append(out, data[:2]...), data[2:]
		}
	}
	return out
}

// escapedOnly reports whether YAML allows c in an escape only, or reads it as the end
// of a line.
func escapedOnly(c rune) bool {
	return 0x7f <= c && c <= 0x9f || c == 0x2028 || c == 0x2029 || c == 0xfffe || c == 0xffff
}

// surrogates returns the character in the two \u escapes that text begins with, or
// utf8.RuneError.
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
