package file

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// asYAML rewrites the three things in the strings of JSON that the YAML package
// does not know: \/, characters in two \u escapes, and a bare U+007F. Lines
// stay what they are. What is not JSON is returned as it is.
func asYAML(data []byte) []byte {
	if !json.Valid(data) {
		return data
	}
	var out []byte
	for {
		at := bytes.IndexAny(data, "\\\x7f")
		if at < 0 {
			return append(out, data...)
		}
		out = append(out, data[:at]...)
		data = data[at:]
		done := 1
		switch c := pair(data); {
		case c != utf8.RuneError:
			out, done = utf8.AppendRune(out, c), 12
		case data[0] == 0x7f:
			out = append(out, `\u007f`...)
		case data[1] == '/':
			out, done = append(out, '/'), 2
		default: // an escape that both know, such as one of the backslash itself
			out, done = append(out, data[:2]...), 2
		}
		data = data[done:]
	}
}

// pair returns the character that is written as two escapes at the beginning of
// text, or utf8.RuneError.
func pair(text []byte) rune {
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
