package text

import (
	"encoding/json"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// CleanJSON escapes the unprintable characters in JSON, except line breaks between
// values. encoding/json itself escapes only the ASCII control characters.
func CleanJSON(data []byte) []byte {
	const hex = "0123456789abcdef"
	out := make([]byte, 0, len(data))
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		data = data[n:]
		// Line breaks inside strings are already escaped.
		if r == '\n' || unicode.IsPrint(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		// JSON escapes characters in UTF-16, which may need two units.
		for _, unit := range utf16.AppendRune(nil, r) {
			out = append(out, '\\', 'u', hex[unit>>12], hex[unit>>8&0xf], hex[unit>>4&0xf], hex[unit&0xf])
		}
	}
	return out
}

// WriteJSON writes v to w as indented JSON with all unprintable characters escaped.
func WriteJSON(w io.Writer, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(CleanJSON(append(data, '\n')))
	return err
}
