package logs

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// LevelTrace is the level "trace", one step below [slog.LevelDebug].
const LevelTrace = slog.LevelDebug - 4

// levelOff is the level "off". It is above all levels of records, so that nothing is logged.
const levelOff = slog.Level(1 << 30)

// Filter specifies the lowest level to log for each target. It is immutable and safe for concurrent
// use. The zero value is the filter "off", which logs nothing.
type Filter struct {
	text  string
	rules []rule // longest target first, so that the first match applies
}

// rule is one directive: the lowest level to log for targets that begin with target.
type rule struct {
	target string // "" means all targets
	level  slog.Level
	span   bool // for a span; such rules match nothing
}

// ParseFilter parses a filter in the syntax of LINKERD2_PROXY_LOG: directives, separated by commas.
// A directive is one of these:
//
//   - a level for all targets: trace, debug, info, warn, error or off, in any case
//   - target=level, for all targets that begin with target: linkerd=info applies to linkerd_app
//   - a target alone, which means target=trace
//
// The longest matching target wins, and the last directive if a target occurs twice. Directives for
// a span or field, such as "[{headers}]=off" from linkerd's injector, are accepted but match
// nothing. At least one other directive is required.
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
		// The last directive for a target wins, so it replaces earlier ones.
		f.rules = slices.DeleteFunc(f.rules, func(old rule) bool { return old.target == r.target })
		f.rules = append(f.rules, r)
	}
	if len(f.rules) == 0 {
		return Filter{}, errors.New("a log filter must have a level")
	}
	// Level uses the first rule that matches, so more specific targets must come first.
	slices.SortStableFunc(f.rules, func(a, b rule) int { return cmp.Compare(len(b.target), len(a.target)) })
	return f, nil
}

// directives splits a log filter into its parts, at commas outside of brackets.
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
	// Empty parts come from a comma at the end or two in a row.
	return slices.DeleteFunc(parts, func(part string) bool { return part == "" })
}

// parseRule parses one directive, which must not be empty. Directives for a span are checked like all others, but
// their rule only says that they are ignored.
func parseRule(directive string) (rule, error) {
	target, spanned, span := strings.Cut(directive, "[")
	// The span itself is not parsed. What remains is target=level, where the target may be missing.
	if span {
		_, rest, closed := strings.Cut(spanned, "]")
		if !closed || rest != "" && !strings.HasPrefix(rest, "=") {
			return rule{}, fmt.Errorf("log filter %q: must have a span in brackets, and then =level", directive)
		}
		// parseRule needs a target or a level. "all" is a placeholder, because the rule is ignored anyway.
		r, err := parseRule(cmp.Or(target, "all") + rest)
		r.span = true
		return r, err
	}
	target, level, both := strings.Cut(directive, "=")
	// A lone word is a level for all targets, or else a target, whose level is then trace.
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

// isTarget reports whether all characters of s are allowed in a target.
func isTarget(s string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-:./"
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) })
}

// parseLevel parses a level's name, or its number from 0 (off) to 5 (trace).
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

// String returns the text from which the filter was parsed, or "off".
func (f Filter) String() string {
	if f.rules == nil {
		return "off"
	}
	return f.text
}

// Level returns the lowest level to log for target.
func (f Filter) Level(target string) slog.Level {
	for _, r := range f.rules {
		if strings.HasPrefix(target, r.target) {
			return r.level
		}
	}
	return levelOff
}
