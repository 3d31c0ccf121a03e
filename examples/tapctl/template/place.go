package template

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// place is one action of a template: its position and its text, with the braces.
type place struct {
	column int // position in characters, from 1
	text   string
}

// places returns the places of all actions in text, in order. It finds the same actions
// as client-go's parser if text is a valid template.
func places(text string) []place {
	var all []place
	// index is where the search for the next action continues.
	for index := 0; ; {
		begin := strings.IndexByte(text[index:], '{')
		if begin < 0 {
			return all
		}
		begin += index
		index = begin + length(text[begin:])
		all = append(all, place{utf8.RuneCountInString(text[:begin]) + 1, text[begin:index]})
	}
}

// length returns how many bytes the action at the beginning of text takes up. Braces inside
// quotes or brackets do not end it.
func length(text string) int {
	var closing byte // the closing quote or bracket; 0 outside of both
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		// An escaped character never closes anything.
		case c == '\\':
			i++
		case closing != 0:
			if c == closing {
				closing = 0
			}
		case c == '"' || c == '\'':
			closing = c
		case c == '[':
			closing = ']'
		case c == '}':
			return i + 1
		}
	}
	return len(text)
}

// in returns err with a prefix: the position and the text of the action p.
func (p place) in(err error) error {
	return fmt.Errorf("at character %d, in %s: %w", p.column, p.text, err)
}

// misplaced returns err, an error of client-go's parser for text, with the mistake's position. To
// find it, misplaced parses each action as a separate template, and takes the first one that the
// parser rejects. Without such an action, it returns err unchanged.
func misplaced(text string, err error) error {
	for _, p := range places(text) {
		if _, err := parse(p.text); err != nil {
			return p.in(err)
		}
	}
	return err
}
