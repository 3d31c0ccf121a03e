package settings

import (
	"errors"
	"slices"
	"strings"
)

// Option configures [Read].
type Option interface{ apply(r *reader) }

type option func(*reader)

func (f option) apply(r *reader) { f(r) }

// File sets the content of a settings file. Read uses it for variables that the environment does
// not set. Error messages call the file name.
func File(name string, content []byte) Option {
	return option(func(r *reader) { r.file = parseFile(name, content) })
}

// Environ makes Read check the names in environ, which is in the form of os.Environ. Unknown names
// that begin with Prefix or OwnPrefix are probably misspelled, and are reported in a single
// warning.
func Environ(environ []string) Option {
	return option(func(r *reader) { r.environ = environ })
}

// Read returns the settings from the environment and [File]. It reads the environment with lookup,
// and panics if lookup is nil. The error joins an [InvalidError] for each invalid value. After an
// error, you may only use Warnings and call [Identity.Check].
func Read(lookup func(name string) (value string, ok bool), opts ...Option) (Settings, error) {
	if lookup == nil {
		panic("settings: Read: lookup is nil; want a function such as os.LookupEnv")
	}
	r := &reader{lookup: lookup, given: map[string]string{}}
	for _, o := range opts {
		o.apply(r)
	}
	var s Settings
	// variables returns descriptions whose set functions store values in s.
	groups := variables(&s)
	for _, g := range groups {
		for i := range g.variables {
			r.read(&s, &g.variables[i])
		}
	}
	// Unknown variables are only a warning: a newer version of linkerd may set more.
	if unknown := unknownNames(r.environ, groups); len(unknown) > 0 {
		s.Warnings = append(s.Warnings, "unknown variables are ignored: "+strings.Join(unknown, ", "))
	}
	// The file's remaining values are unknown or invalid.
	if r.file != nil {
		r.problems = append(r.problems, r.file.finish()...)
	}
	// finish runs even after errors, so that the user sees all problems at once.
	r.finish(&s)
	return s, errors.Join(r.problems...)
}

// reader is the state of one call to [Read].
type reader struct {
	lookup   func(string) (string, bool)
	file     *file
	environ  []string          // variables whose names are checked; nil means no check
	given    map[string]string // where each variable is set, by name
	problems []error
}

// unknownNames returns the sorted names in environ that begin with Prefix or OwnPrefix but occur in
// none of the groups.
func unknownNames(environ []string, groups []group) []string {
	known := map[string]bool{}
	for _, g := range groups {
		for _, v := range g.variables {
			// A former name is still valid.
			known[v.full(v.name)] = true
			for _, name := range v.oldNames {
				known[v.full(name)] = true
			}
		}
	}
	var unknown []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if (strings.HasPrefix(name, Prefix) || strings.HasPrefix(name, OwnPrefix)) && !known[name] {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}

// find returns v's text and the place where it is set. The environment takes precedence over the
// file. ok is false if neither sets v.
func (r *reader) find(v *variable) (text, position string, ok bool) {
	names := append([]string{v.name}, v.oldNames...)
	// Any name in the environment has precedence over the file.
	for _, name := range names {
		if text, ok = r.lookup(v.full(name)); ok {
			return text, v.full(name), true
		}
	}
	// A general variable in the environment also overrides a specific value in the file.
	if r.file == nil || r.isOverridden(v) {
		return "", "", false
	}
	for _, name := range names {
		if text, position, ok = r.file.find(name); ok {
			return text, position, true
		}
	}
	return "", "", false
}

// isOverridden reports whether the environment overrides v's value in the file, because it sets
// v.overrides, a more general variable. It does not if it also sets v.pair, such as the server name
// for a server ID, because v then completes the pair.
func (r *reader) isOverridden(v *variable) bool {
	return r.isSet(v, v.overrides) && !r.isSet(v, v.pair)
}

// isSet reports whether the environment sets name, which is without v's prefix.
func (r *reader) isSet(v *variable, name string) bool {
	if name == "" {
		return false
	}
	_, set := r.lookup(v.full(name))
	return set
}

// read stores v's value or default in its field.
func (r *reader) read(s *Settings, v *variable) {
	text, position, ok := r.find(v)
	if !ok {
		// The default has the variable's syntax, so it is parsed like a value.
		if v.def != "" {
			r.take(s, v, v.def, v.full(v.name))
		}
		return
	}
	// Defaults are not recorded: has and where only know what the user has set.
	r.given[v.name] = position
	if r.take(s, v, text, position) && v.ignored != "" {
		s.Warnings = append(s.Warnings, position+" is ignored: "+v.ignored)
	}
}

// take parses text, which was set at position, and reports whether it is valid. An invalid text is
// reported as a warning if v is lenient, and as an error otherwise.
func (r *reader) take(s *Settings, v *variable, text, position string) bool {
	err := v.set(text)
	if err == nil {
		return true
	}
	p := v.invalid(position, text, err)
	if v.lenient {
		s.Warnings = append(s.Warnings, p.Error()+": ignored")
	} else {
		r.problems = append(r.problems, p)
	}
	return false
}

// has reports whether the environment or the file sets at least one of the variables. Names are
// without a prefix.
func (r *reader) has(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return r.given[name] != "" })
}

// where returns the place where the variable is set, or else its full name.
func (r *reader) where(name string) string {
	if position := r.given[name]; position != "" {
		return position
	}
	return Prefix + name
}

// problem adds an error about a variable.
func (r *reader) problem(name, reason string) {
	r.problems = append(r.problems, &InvalidError{Where: r.where(name), Err: errors.New(reason)})
}

// require adds an error for each variable that is not set. reason tells why it is required.
func (r *reader) require(reason string, names ...string) {
	for _, name := range names {
		if !r.has(name) {
			r.problem(name, "is not set: "+reason)
		}
	}
}
