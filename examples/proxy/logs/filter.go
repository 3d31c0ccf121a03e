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

// Filter specifies the lowest logged level of each target. It is immutable and safe for
// concurrent use. The zero Filter is "off".
type Filter struct {
	text  string
	rules []rule // the longest target first; a rule for all targets is the last
}

type rule struct {
	target string // "": all targets
	level  slog.Level
	span   bool // for a span, which matches nothing
}

// ParseFilter parses levels and targets in the syntax of LINKERD2_PROXY_LOG: directives
// with commas between them. A directive is a level (trace, debug, info, warn, error, off)
// for all targets, target=level, or a target, which means trace. The longest target that
// matches a record decides, and of equal ones the last. A target matches all targets that
// begin with it, so linkerd=info applies to linkerd_app. Levels are case-insensitive.
//
// Directives by span or field ("[{headers}]=off", which linkerd's injector appends) are
// accepted and match nothing. A filter without any other directive is an error.
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
		return Filter{}, errors.New("a log filter must have a level")
	}
	slices.SortStableFunc(f.rules, func(a, b rule) int { return cmp.Compare(len(b.target), len(a.target)) })
	return f, nil
}

// directives splits s at the commas outside of brackets.
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
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-:./"
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) })
}

// parseLevel parses a level as in Rust's env filters.
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

// String returns the text of the filter.
func (f Filter) String() string {
	if f.rules == nil {
		return "off"
	}
	return f.text
}

// Level returns the lowest level of target that is logged.
func (f Filter) Level(target string) slog.Level {
	for _, r := range f.rules {
		if strings.HasPrefix(target, r.target) {
			return r.level
		}
	}
	return levelOff
}

// Lowest returns the lowest level that is logged for any target.
func (f Filter) Lowest() slog.Level {
	lowest := levelOff
	for _, r := range f.rules {
		lowest = min(lowest, r.level)
	}
	return lowest
}
