package profiles

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// appendIdentity appends a text that two routes share if and only if they are
// deeply equal. It is not for people. What fmt prints would not do: the
// conditions Path("/a") and PathPrefix("/a") print alike.
func (r Route) appendIdentity(b []byte) []byte {
	return appendValue(b, reflect.ValueOf(r))
}

func appendValue(b []byte, v reflect.Value) []byte {
	switch kind := v.Kind(); {
	case kind == reflect.String:
		return appendText(b, v.String())
	case kind == reflect.Bool:
		return strconv.AppendBool(b, v.Bool())
	case v.CanInt():
		return strconv.AppendInt(b, v.Int(), 36)
	case v.CanUint():
		return strconv.AppendUint(b, v.Uint(), 36)
	case v.CanFloat():
		return strconv.AppendFloat(b, v.Float(), 'x', -1, 64)
	case kind == reflect.Struct:
		b = append(b, '{')
		for i := range v.NumField() { //nolint:modernize // the iterator allocates
			b = append(appendValue(b, v.Field(i)), ' ')
		}
		return append(b, '}')
	case kind == reflect.Array:
		return appendElements(b, v)
	case kind == reflect.Slice, kind == reflect.Map, kind == reflect.Interface, kind == reflect.Pointer:
		return appendReference(b, v)
	}
	return fmt.Appendf(b, "%v", v) // a func or a channel, which is equal to itself alone
}

// appendReference appends a value that may be nil, which is not the same as an
// empty one.
func appendReference(b []byte, v reflect.Value) []byte {
	if v.IsNil() {
		return append(b, '-')
	}
	switch kind := v.Kind(); kind {
	case reflect.Interface:
		t := v.Elem().Type()
		b = appendText(appendText(b, t.PkgPath()), t.String())
		return appendValue(b, v.Elem())
	case reflect.Map:
		return appendMap(b, v)
	case reflect.Slice:
		return appendElements(b, v)
	default:
		return appendValue(append(b, '&'), v.Elem())
	}
}

func appendElements(b []byte, v reflect.Value) []byte {
	b = append(strconv.AppendInt(b, int64(v.Len()), 36), '[')
	for i := range v.Len() {
		b = append(appendValue(b, v.Index(i)), ' ')
	}
	return append(b, ']')
}

func appendMap(b []byte, v reflect.Value) []byte {
	if v.CanInterface() {
		// Labels are the one map that most routes have.
		if labels, ok := reflect.TypeAssert[map[string]string](v); ok {
			return appendLabels(b, labels)
		}
	}
	entries := make([]string, 0, v.Len())
	for i := v.MapRange(); i.Next(); {
		entries = append(entries, string(appendValue(appendValue(nil, i.Key()), i.Value())))
	}
	slices.Sort(entries)
	b = append(b, 'm')
	for _, e := range entries {
		b = appendText(b, e)
	}
	return append(b, ' ')
}

func appendLabels(b []byte, labels map[string]string) []byte {
	var few [8]string
	names := slices.AppendSeq(few[:0], maps.Keys(labels))
	slices.Sort(names)
	b = append(b, 'm')
	for _, name := range names {
		b = appendText(appendText(b, name), labels[name])
	}
	return append(b, ' ')
}

// appendText appends s with its length, so that it can have any byte.
func appendText(b []byte, s string) []byte {
	return append(append(strconv.AppendInt(b, int64(len(s)), 36), ':'), s...)
}

// key is what paths look like that a condition may hold for: parts of fixed
// text, and between each two of them the rest of a segment, whatever that is.
// It may say less than the condition does, never more.
type key struct {
	parts []string // at least one
	open  bool     // anything may follow the last
}

// keyOf returns the key of an expression that is anchored at its begin.
func keyOf(steps []*syntax.Regexp, ended bool) key {
	k := key{parts: []string{""}}
	hole := false // the rest of the segment was given up
	for _, step := range steps {
		text, fixed := literal(step)
		switch {
		case fixed && hole:
			i := strings.IndexByte(text, '/')
			if i < 0 {
				continue
			}
			k.parts = append(k.parts, text[i:])
			hole = false
		case fixed:
			k.parts[len(k.parts)-1] += text
		case withinSegment(step):
			hole = true
		default:
			k.open = true
			return k
		}
	}
	if hole && ended {
		k.parts = append(k.parts, "")
	}
	k.open = !ended
	return k
}

// withinSegment reports whether nothing that the expression matches has a '/'.
func withinSegment(tree *syntax.Regexp) bool {
	switch tree.Op { //nolint:exhaustive // the others are made of these
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return false
	case syntax.OpLiteral:
		return !slices.Contains(tree.Rune, '/')
	case syntax.OpCharClass:
		for i := 0; i < len(tree.Rune); i += 2 {
			if tree.Rune[i] <= '/' && '/' <= tree.Rune[i+1] {
				return false
			}
		}
		return true
	}
	for _, sub := range tree.Sub {
		if !withinSegment(sub) {
			return false
		}
	}
	return true
}

func (p *pathSegments) key() key {
	k := key{parts: []string{p.head}, open: p.open}
	for _, h := range p.holes {
		k.parts = append(k.parts, h.next)
	}
	return k
}

// keys are what requests look like that a condition may hold for.
type keys struct {
	paths   []key    // one of these, if there are any
	methods []string // else one of these, if there are any
	never   bool     // there are no such requests
}

// maxKeys bounds the places where one route is kept.
const maxKeys = 64

// keysOf returns the keys of a condition.
func keysOf(m matcher) keys {
	switch m := m.(type) {
	case pathIs:
		return keys{paths: []key{{parts: []string{m.want}}}}
	case *pathSegments:
		return keys{paths: []key{m.key()}}
	case *pathMatches:
		return keys{paths: []key{m.key}}
	case pathBegins:
		return keys{paths: m.keys()}
	case grpcCall:
		return keys{paths: []key{m.key()}}
	case methodIs:
		return keys{methods: []string{string(m)}}
	case allOf:
		return m.keys()
	case anyOf:
		return m.keys()
	}
	return keys{}
}

func (p pathBegins) keys() []key {
	below := key{parts: []string{string(p) + "/"}, open: true}
	if p == "" {
		return []key{below}
	}
	return []key{{parts: []string{string(p)}}, below}
}

func (g grpcCall) key() key {
	switch {
	case g.service == "":
		return key{parts: []string{"/", "/" + g.method}, open: g.method == ""}
	case g.method == "":
		return key{parts: []string{"/" + g.service + "/"}, open: true}
	}
	return key{parts: []string{"/" + g.service + "/" + g.method}}
}

// keys are those of the member that says most: all of them say something true.
func (a allOf) keys() keys {
	var best keys
	for _, m := range a {
		if k := keysOf(m); k.weight() > best.weight() {
			best = k
		}
	}
	return best
}

// keys are those of all members, if each has some.
func (a anyOf) keys() keys {
	all := keys{never: true}
	for _, m := range a {
		k := keysOf(m)
		if k.never {
			continue
		}
		if !all.never && (len(k.paths) == 0) != (len(all.paths) == 0) {
			return keys{}
		}
		all.never = false
		all.paths = append(all.paths, k.paths...)
		all.methods = append(all.methods, k.methods...)
		if len(k.paths)+len(k.methods) == 0 || len(all.paths)+len(all.methods) > maxKeys {
			return keys{}
		}
	}
	return all
}

// weight is how much the keys say: bytes of fixed text that the worst of them
// asks for.
func (k keys) weight() int {
	switch {
	case k.never:
		return int(^uint(0) >> 1)
	case len(k.paths) == 0 && len(k.methods) == 0:
		return 0
	case len(k.paths) == 0:
		return 2
	}
	least := -1
	for _, p := range k.paths {
		w := 1
		for _, part := range p.parts {
			w += 2 * len(part)
		}
		if !p.open {
			w++
		}
		if least < 0 || w < least {
			least = w
		}
	}
	return least
}

const (
	// maxExpression is how many bytes long an expression may be, and how many
	// instructions its repeats may make of it. Whoever writes a profile of a few
	// bytes could else have each Router take hundreds of megabytes, and each request
	// seconds: "(a?){1000}" is 4000 instructions, and each byte of a path may visit
	// them all. linkerd's bound is that of Rust's regex, 10 MiB of compiled program,
	// which costs less there.
	maxExpression = 10_000

	// maxGrowth is how many instructions the expressions of a profile may have
	// beyond their own length, all together: about a tenth of a second at worst, for
	// a path of 2 KB that keeps all of them busy. What is written out is not counted;
	// that a profile of megabytes is slow is no surprise.
	maxGrowth = 20_000
)

// errTooLarge is that an expression is beyond what is done for one.
var errTooLarge = errors.New("regular expression is too large")

// parseRegex parses an expression that is not too large.
func parseRegex(pattern string, flags syntax.Flags) (*syntax.Regexp, error) {
	if len(pattern) > maxExpression {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", errTooLarge, len(pattern), maxExpression)
	}
	tree, err := syntax.Parse(pattern, flags)
	if err != nil {
		return nil, err
	}
	if n := instructions(tree); n > maxExpression {
		return nil, fmt.Errorf("%w: %d instructions with its repeats written out, at most %d", errTooLarge, n, maxExpression)
	}
	return tree, nil
}

// quote is a pattern for an error, if it is long its begin.
func quote(pattern string) string {
	const enough = 200
	if len(pattern) > enough {
		return strconv.Quote(pattern[:enough]) + "…"
	}
	return strconv.Quote(pattern)
}

// instructions is how many an expression has once its repeats are written out,
// or somewhat more. The members of a class count by the memory that they take.
// Repeats of repeats are no more than 1000 in all, so that no sum is too large.
func instructions(tree *syntax.Regexp) int {
	n := 0
	for _, sub := range tree.Sub {
		n += instructions(sub)
	}
	switch tree.Op {
	case syntax.OpLiteral:
		n = len(tree.Rune)
	case syntax.OpCharClass:
		n = 1 + len(tree.Rune)/16
	case syntax.OpCapture, syntax.OpStar:
		n += 2
	case syntax.OpConcat:
	case syntax.OpAlternate:
		n += len(tree.Sub) - 1
	case syntax.OpRepeat:
		n = repeated(n, tree.Min, tree.Max)
	default: // one of its own
		n++
	}
	return max(n, 1)
}

// repeated is what n instructions are if they are there from least to most
// times; most is -1 if there is no end to it.
func repeated(n, least, most int) int {
	switch {
	case most >= 0:
		return most*n + most - least
	case least == 0:
		return n + 2
	}
	return least*n + 1
}

// growth is how many instructions the expressions of a route have beyond their
// own length. What is invalid has none: it is left out.
func (r Route) growth() int {
	n := growthOf(r.Match)
	for _, c := range r.Classes {
		n += growthOf(c.Match)
	}
	return n
}

func growthOf(m Match) int {
	switch m := m.(type) {
	case All:
		return growthOfAll(m)
	case Any:
		return growthOfAll(m)
	case Not:
		return growthOf(m.Match)
	case Path:
		return growthOfRegex(anchor(string(m)), 0)
	case Header:
		return growthOfText(m.Value, 0)
	case Query:
		return growthOfText(m.Value, 0)
	case Trailer:
		return growthOfText(m.Value, 0)
	case Host:
		return growthOfText(m.Value, syntax.FoldCase)
	}
	return 0
}

func growthOfAll(members []Match) int {
	n := 0
	for _, m := range members {
		n += growthOf(m)
	}
	return n
}

func growthOfText(t StringMatch, fold syntax.Flags) int {
	if regex, ok := t.(Regex); ok {
		return growthOfRegex(string(regex), fold)
	}
	return 0
}

func growthOfRegex(pattern string, fold syntax.Flags) int {
	tree, err := parseRegex(pattern, syntax.Perl|fold)
	if err != nil {
		return 0
	}
	return max(0, instructions(tree)-len(pattern))
}

// room is what is left of maxGrowth.
type room int

// take says why there is none left for the route, number i.
func (r *room) take(i int, def Route, growth int) error {
	if growth > int(*r) {
		return routeError(i, def, fmt.Errorf(
			"%w: with those of the routes before, repeats make more than %d instructions beyond what is written", errTooLarge, maxGrowth))
	}
	*r -= room(growth)
	return nil
}
