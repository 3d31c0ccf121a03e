package settings

import (
	"errors"
	"slices"
	"strings"
)

// Option says where settings are read from, besides the environment.
type Option interface{ apply(r *reader) }

type option func(*reader)

func (f option) apply(r *reader) { f(r) }

// File reads a file of settings as well; name is for what is said of it.
// Variables win over it.
func File(name string, content []byte) Option {
	return option(func(r *reader) { r.file = parseFile(name, content) })
}

// Environ makes Read check the names of all variables of an environment, as
// os.Environ returns it. Names that begin with Prefix or OwnPrefix and are unknown
// become one warning, because they are most likely spelling mistakes.
func Environ(environ []string) Option {
	return option(func(r *reader) { r.environ = environ })
}

// Read returns what the environment, by way of lookup, and the files say. The
// error is all that is wrong at once, as [InvalidError] values in an errors.Join; the
// Settings are of no use then, but for their Warnings and [Identity.Check], which
// finds what is wrong with the files that they name.
func Read(lookup func(name string) (value string, ok bool), opts ...Option) (Settings, error) {
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
	given    map[string]string // names of variables that were given, and where
	problems []error
}

// unknownNames returns the names in environ that have one of our prefixes and are
// not in groups, sorted.
func unknownNames(environ []string, groups []group) []string {
	known := map[string]bool{}
	for _, g := range groups {
		for _, v := range g.variables {
			known[v.full(v.name)] = true
			for _, name := range v.older {
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

// find returns what was said of v, and where.
func (r *reader) find(v *variable) (text, where string, ok bool) {
	names := append([]string{v.name}, v.older...)
	for _, name := range names {
		if text, ok = r.lookup(v.full(name)); ok {
			return text, v.full(name), true
		}
	}
	if r.file == nil || r.beaten(v) {
		return "", "", false
	}
	for _, name := range names {
		if text, where, ok = r.file.find(name); ok {
			return text, where, true
		}
	}
	return "", "", false
}

// beaten reports whether the environment says by another name what the file may
// say by that of v, and not half of what v is the other half of.
func (r *reader) beaten(v *variable) bool {
	return r.said(v, v.beats) && !r.said(v, v.with)
}

// said reports whether the environment has a variable of that name, which is
// written as that of v is.
func (r *reader) said(v *variable, name string) bool {
	if name == "" {
		return false
	}
	_, said := r.lookup(v.full(name))
	return said
}

func (r *reader) read(s *Settings, v *variable) {
	text, where, ok := r.find(v)
	if !ok {
		if v.usual != "" {
			r.take(s, v, v.usual, v.full(v.name))
		}
		return
	}
	r.given[v.name] = where
	if r.take(s, v, text, where) && v.lost != "" {
		s.Warnings = append(s.Warnings, where+" is not honoured: "+v.lost)
	}
}

func (r *reader) take(s *Settings, v *variable, text, where string) bool {
	err := v.set(text)
	if err == nil {
		return true
	}
	p := v.invalid(where, text, err)
	if v.mild {
		s.Warnings = append(s.Warnings, p.Error()+": ignored")
	} else {
		r.problems = append(r.problems, p)
	}
	return false
}

// has reports whether any of the variables was given.
func (r *reader) has(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return r.given[name] != "" })
}

// where is the name of a variable for people: where it was given, if it was.
func (r *reader) where(name string) string {
	if where := r.given[name]; where != "" {
		return where
	}
	return Prefix + name
}

func (r *reader) problem(name, says string) {
	r.problems = append(r.problems, &InvalidError{Where: r.where(name), Err: errors.New(says)})
}

func (r *reader) require(why string, names ...string) {
	for _, name := range names {
		if !r.has(name) {
			r.problem(name, "is not set: "+why)
		}
	}
}
