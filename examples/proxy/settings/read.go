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

// File makes Read use the content of a settings file for variables that the environment
// does not set. Error messages contain name as the name of the file.
func File(name string, content []byte) Option {
	return option(func(r *reader) { r.file = parseFile(name, content) })
}

// Environ makes Read check the names of all variables in environ, which has the form of
// os.Environ. Read adds a single warning for all unknown names that begin with Prefix or
// OwnPrefix, because they are probably misspelled.
func Environ(environ []string) Option {
	return option(func(r *reader) { r.environ = environ })
}

// Read returns the settings that the environment and the file of [File] contain. It reads
// the environment with lookup, and panics if lookup is nil. The error joins an
// [InvalidError] for each invalid value. After an error, only the field Warnings and the
// method [Identity.Check] of the field Identity may be used.
func Read(lookup func(name string) (value string, ok bool), opts ...Option) (Settings, error) {
	if lookup == nil {
		panic("settings: Read: lookup is nil; want a function such as os.LookupEnv")
	}
	r := &reader{lookup: lookup, given: map[string]string{}}
	for _, o := range opts {
		o.apply(r)
	}
	var s Settings
	groups := variables(&s)
	for _, g := range groups {
		for i := range g.variables {
			r.read(&s, &g.variables[i])
		}
	}
	if unknown := unknownNames(r.environ, groups); len(unknown) > 0 {
		s.Warnings = append(s.Warnings, "unknown variables are ignored: "+strings.Join(unknown, ", "))
	}
	if r.file != nil {
		r.problems = append(r.problems, r.file.finish()...)
	}
	r.finish(&s)
	return s, errors.Join(r.problems...)
}

// reader is the state of one call of [Read].
type reader struct {
	lookup   func(string) (string, bool)
	file     *file
	environ  []string          // variables to check for unknown names; nil means no check
	given    map[string]string // by name, the place where each variable is set
	problems []error
}

// unknownNames returns the names in environ that begin with Prefix or OwnPrefix but are
// not names of the variables in groups. The result is sorted.
func unknownNames(environ []string, groups []group) []string {
	known := map[string]bool{}
	for _, g := range groups {
		for _, v := range g.variables {
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

// find returns the text of v and the place where v is set. The environment takes
// precedence over the file. ok is false if neither sets v.
func (r *reader) find(v *variable) (text, where string, ok bool) {
	names := append([]string{v.name}, v.oldNames...)
	for _, name := range names {
		if text, ok = r.lookup(v.full(name)); ok {
			return text, v.full(name), true
		}
	}
	if r.file == nil || r.isOverridden(v) {
		return "", "", false
	}
	for _, name := range names {
		if text, where, ok = r.file.find(name); ok {
			return text, where, true
		}
	}
	return "", "", false
}

// isOverridden reports whether the environment overrides a value of v in the file. The
// result is true if the environment sets v.overrides, a more general variable. If the
// environment also sets v.with, the result is false, because v then completes a pair with
// v.with, such as server ID and name.
func (r *reader) isOverridden(v *variable) bool {
	return r.isSet(v, v.overrides) && !r.isSet(v, v.with)
}

// isSet reports whether the environment sets the variable with the given name. The name has
// no prefix. isSet adds the prefix of v.
func (r *reader) isSet(v *variable, name string) bool {
	if name == "" {
		return false
	}
	_, set := r.lookup(v.full(name))
	return set
}

// read stores the value of v in its field of the settings, or the default if v is not set.
func (r *reader) read(s *Settings, v *variable) {
	text, where, ok := r.find(v)
	if !ok {
		if v.def != "" {
			r.take(s, v, v.def, v.full(v.name))
		}
		return
	}
	r.given[v.name] = where
	if r.take(s, v, text, where) && v.ignored != "" {
		s.Warnings = append(s.Warnings, where+" is ignored: "+v.ignored)
	}
}

// take parses text as the value of v and reports whether it is valid. If it is invalid,
// take adds a warning if v is lenient, and an error otherwise. The argument where is the
// place where the value is set.
func (r *reader) take(s *Settings, v *variable, text, where string) bool {
	err := v.set(text)
	if err == nil {
		return true
	}
	p := v.invalid(where, text, err)
	if v.lenient {
		s.Warnings = append(s.Warnings, p.Error()+": ignored")
	} else {
		r.problems = append(r.problems, p)
	}
	return false
}

// has reports whether the environment or the file sets at least one of the variables with
// the given names. The names have no prefix.
func (r *reader) has(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return r.given[name] != "" })
}

// where returns the place where the variable with the given name is set. If it is not set,
// where returns the full name.
func (r *reader) where(name string) string {
	if where := r.given[name]; where != "" {
		return where
	}
	return Prefix + name
}

// problem adds an error about the variable with the given name.
func (r *reader) problem(name, reason string) {
	r.problems = append(r.problems, &InvalidError{Where: r.where(name), Err: errors.New(reason)})
}

// require adds an error for each of the given variables that is not set. reason is why the
// variable is required.
func (r *reader) require(reason string, names ...string) {
	for _, name := range names {
		if !r.has(name) {
			r.problem(name, "is not set: "+reason)
		}
	}
}
