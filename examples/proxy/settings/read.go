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

// File makes Read use the content of a file too. Variables win over it. The name is for
// error messages.
func File(name string, content []byte) Option {
	return option(func(r *reader) { r.file = parseFile(name, content) })
}

// Environ makes Read check the names of all variables of an environment, as
// os.Environ returns it. Names that begin with Prefix or OwnPrefix and are unknown
// become one warning, because they are most likely spelling mistakes.
func Environ(environ []string) Option {
	return option(func(r *reader) { r.environ = environ })
}

// Read returns the settings of the environment, which lookup reads, and of the files.
// The error contains all problems, as [InvalidError] values in an errors.Join. After an
// error only Warnings and [Identity.Check] are of use. Read panics if lookup is nil.
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

// reader is one call of Read.
type reader struct {
	lookup   func(string) (string, bool)
	file     *file
	environ  []string          // to be checked for unknown names
	given    map[string]string // place of each variable that is set, by name
	problems []error
}

// unknownNames returns the names in environ that have one of our prefixes and are
// not in groups, sorted.
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

// find returns the text of v and its place.
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

// isOverridden reports whether the environment sets the variable that v overrides, so that
// v of the file is ignored. v is used if the environment sets the other half of v.
func (r *reader) isOverridden(v *variable) bool {
	return r.isSet(v, v.overrides) && !r.isSet(v, v.with)
}

// isSet reports whether the environment sets a variable with the prefix of v.
func (r *reader) isSet(v *variable, name string) bool {
	if name == "" {
		return false
	}
	_, set := r.lookup(v.full(name))
	return set
}

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

// has reports whether any of the named environment variables is set.
func (r *reader) has(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return r.given[name] != "" })
}

// where returns the place where a variable is set, or else its full name.
func (r *reader) where(name string) string {
	if where := r.given[name]; where != "" {
		return where
	}
	return Prefix + name
}

func (r *reader) problem(name, reason string) {
	r.problems = append(r.problems, &InvalidError{Where: r.where(name), Err: errors.New(reason)})
}

func (r *reader) require(why string, names ...string) {
	for _, name := range names {
		if !r.has(name) {
			r.problem(name, "is not set: "+why)
		}
	}
}
