package logs

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// LevelTrace is below slog.LevelDebug; slog has no name for it.
const LevelTrace = slog.LevelDebug - 4

// levelOff is above all levels that are logged.
const levelOff = slog.Level(1 << 30)

// Filter says from which level on the records of a target are logged. It is
// safe for concurrent use, and does not change. The zero Filter is "off".
type Filter struct {
	text  string
	rules []rule // the longest target first; the last is for all, if any is
}

type rule struct {
	target string // "" for all
	level  slog.Level
	span   bool // it is about a span, of which there are none
}

// ParseFilter reads the syntax of LINKERD2_PROXY_LOG, as far as levels and
// targets: directives with commas between them, each of which is a level
// (trace, debug, info, warn, error, off; for all targets), target=level, or a
// target, which is then logged from trace on. The longest target that matches a
// record decides, and of equal ones the last; a target matches all that begin
// with it, so that linkerd=info is for linkerd_app too. Levels are read without
// regard to case.
//
// Directives by span or field ("[{headers}]=off", which linkerd's injector
// appends) are read and match nothing: there are no spans here, and the fields
// of requests are not logged. A filter without any other says nothing, which is
// an error.
func ParseFilter(s string) (Filter, error) {
	f := Filter{text: s}
	for _, directive := range directives(s) {
		r, err := parseRule(directive)
		if err != nil {
			return Filter{}, err
		}
		if r.span {
			continue
		}
		f.rules = slices.DeleteFunc(f.rules, func(old rule) bool { return old.target == r.target })
		f.rules = append(f.rules, r)
	}
	if len(f.rules) == 0 {
		return Filter{}, errors.New("a log filter must say a level")
	}
	slices.SortStableFunc(f.rules, func(a, b rule) int { return cmp.Compare(len(b.target), len(a.target)) })
	return f, nil
}

// directives are what stands between the commas that are in no brackets.
func directives(s string) []string {
	depth := 0
	parts := strings.FieldsFunc(s, func(r rune) bool {
		switch r {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		}
		return r == ',' && depth <= 0
	})
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return slices.DeleteFunc(parts, func(part string) bool { return part == "" })
}

func parseRule(directive string) (rule, error) {
	before, spanned, span := strings.Cut(directive, "[")
	if span {
		_, after, closed := strings.Cut(spanned, "]")
		if !closed || after != "" && !strings.HasPrefix(after, "=") {
			return rule{}, fmt.Errorf("log filter %q: must have a span in brackets, and then =level", directive)
		}
		r, err := parseRule(cmp.Or(before, "all") + after)
		r.span = true
		return r, err
	}
	target, level, both := strings.Cut(directive, "=")
	if !both {
		if l, ok := parseLevel(directive); ok {
			return rule{level: l}, nil
		}
		level = "trace"
	}
	l, ok := parseLevel(level)
	if !ok {
		return rule{}, fmt.Errorf("log filter %q: %q must be trace, debug, info, warn, error or off", directive, level)
	}
	if !isTarget(target) {
		return rule{}, fmt.Errorf("log filter %q: %q must be a target: letters, digits, _ - : . and /", directive, target)
	}
	return rule{target: target, level: l}, nil
}

func isTarget(s string) bool {
	const of = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-:./"
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(of, r) })
}

// parseLevel reads a level as env filters write it.
func parseLevel(s string) (slog.Level, bool) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "trace", "5":
		return LevelTrace, true
	case "debug", "4":
		return slog.LevelDebug, true
	case "info", "3":
		return slog.LevelInfo, true
	case "warn", "2":
		return slog.LevelWarn, true
	case "error", "1":
		return slog.LevelError, true
	case "off", "0":
		return levelOff, true
	}
	return 0, false
}

// String returns the filter as it was written.
func (f Filter) String() string {
	if f.rules == nil {
		return "off"
	}
	return f.text
}

// Level returns from which level on the records of target are logged.
func (f Filter) Level(target string) slog.Level {
	for _, r := range f.rules {
		if strings.HasPrefix(target, r.target) {
			return r.level
		}
	}
	return levelOff
}

// Least returns the lowest level that is logged of any target.
func (f Filter) Least() slog.Level {
	least := levelOff
	for _, r := range f.rules {
		least = min(least, r.level)
	}
	return least
}
