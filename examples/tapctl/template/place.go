package template

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// place is one action of a template: from its brace to its brace.
type place struct {
	column int // of characters, from 1
	text   string
}

// places finds the actions. They are those that client-go finds in what it can
// read.
func places(text string) []place {
	var all []place
	for at := 0; ; {
		begin := strings.IndexByte(text[at:], '{')
		if begin < 0 {
			return all
		}
		begin += at
		at = begin + length(text[begin:])
		all = append(all, place{utf8.RuneCountInString(text[:begin]) + 1, text[begin:at]})
	}
}

// length is where an action ends that text begins with: in quotes and in
// brackets braces are like anything else.
func length(text string) int {
	var within byte // what ends this, a quote or a bracket; 0 for neither
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case within != 0:
			if c == within {
				within = 0
			}
		case c == '"' || c == '\'':
			within = c
		case c == '[':
			within = ']'
		case c == '}':
			return i + 1
		}
	}
	return len(text)
}

// in says where err is.
func (p place) in(err error) error {
	return fmt.Errorf("at character %d, in %s: %w", p.column, p.text, err)
}

// misplaced says where err is in a template that cannot be read: in the first
// action that cannot be read by itself.
func misplaced(text string, err error) error {
	for _, p := range places(text) {
		if _, err := parse(p.text); err != nil {
			return p.in(err)
		}
	}
	return err
}
