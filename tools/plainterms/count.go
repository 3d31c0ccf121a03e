package main

import (
	"fmt"
	"regexp"
	"strings"
)

// rules has the name and the regular expression of each kind of wording that is counted.
var rules = []struct {
	name string
	expr *regexp.Regexp
}{
	{"pronouns", regexp.MustCompile(`(?i)\b(who|whoever|whom|nobody|somebody|anybody|everybody)\b`)},
	{"is-no", regexp.MustCompile(`(?i)\b(is|are) (no|none)\b`)},
	{"what-is", regexp.MustCompile(`(?i)(^|[^a-z]\s*|\b(of|to|by|for|from|with|at|on|than|and|or|as|in) )what (is|are|was|were)\b`)},
	{"idioms", regexp.MustCompile(`(?i)\b(in vain|for good|lets? go|goes on|as it (is|was))\b`)},
}

// longSentence is the name of the count of long sentences. These are sentences with more than
// maxWords words.
const (
	longSentence = "long-sentences"
	maxWords     = 35
)

func names() []string {
	var list []string
	for _, r := range rules {
		list = append(list, r.name)
	}
	return append(list, longSentence)
}

// found has the places of the matches of one count, each in the form "file:line: text".
type found struct{ places []string }

func count(texts []text) map[string]*found {
	counts := make(map[string]*found)
	for _, name := range names() {
		counts[name] = new(found)
	}
	for _, t := range texts {
		for _, r := range rules {
			for _, at := range r.expr.FindAllStringIndex(t.words, -1) {
				counts[r.name].places = append(counts[r.name].places, t.place(at[0]))
			}
		}
		for _, s := range sentences(t.words) {
			if len(strings.Fields(t.words[s[0]:s[1]])) > maxWords {
				counts[longSentence].places = append(counts[longSentence].places, t.place(s[0]))
			}
		}
	}
	return counts
}

// place returns the position of the byte at offset in t: the file, the line, and the first
// words from that byte.
func (t text) place(offset int) string {
	line := t.line + strings.Count(t.words[:offset], "\n")
	words := strings.Fields(t.words[offset:])
	return fmt.Sprintf("%s:%d: %s", t.file, line, strings.Join(words[:min(len(words), 12)], " "))
}

// sentenceEnd matches the end of a sentence. This is punctuation before white space, an
// empty line, or the mark of a list item at the start of a line.
var sentenceEnd = regexp.MustCompile(`[.!?:;]["')\]]?(\s|$)|\n\s*\n|\n\s*([-*]|[0-9]+\.)\s`)

// sentences returns the start and the end of each sentence of s.
func sentences(s string) (list [][2]int) {
	start := 0
	for _, at := range sentenceEnd.FindAllStringIndex(s, -1) {
		list = append(list, [2]int{start, at[1]})
		start = at[1]
	}
	return append(list, [2]int{start, len(s)})
}
