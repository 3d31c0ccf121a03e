package profiles

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func noDrop(t testing.TB) func(error) {
	return func(err error) { assert.NoError(t, err, "nothing of this is invalid") }
}

// on is a request without a query, an authority and a header.
func on(method, path string) facts {
	return facts{method: method, path: path, header: httpFields(nil)}
}

// TestMatch has the rules of single conditions.
func TestMatch(t *testing.T) {
	get, root := Method("GET"), Path("/")
	for _, tt := range []struct {
		what         string
		match        Match
		method, path string
		want         bool
	}{
		{"all of nothing is true", All{}, "GET", "/", true},
		{"all of nil is true", All(nil), "GET", "/", true},
		{"any of nothing is false", Any{}, "GET", "/", false},
		{"any of nil is false", Any(nil), "GET", "/", false},
		{"not all of nothing", Not{All{}}, "GET", "/", false},
		{"not any of nothing", Not{Any{}}, "GET", "/", true},

		{"all: both", All{get, root}, "GET", "/", true},
		{"all: only the first", All{get, root}, "GET", "/x", false},
		{"all: only the second", All{get, root}, "PUT", "/", false},
		{"any: the first", Any{get, root}, "GET", "/x", true},
		{"any: the second", Any{get, root}, "PUT", "/", true},
		{"any: none", Any{get, root}, "PUT", "/x", false},
		{"all of one", All{get}, "GET", "/", true},
		{"any of one", Any{get}, "PUT", "/", false},
		{"not", Not{get}, "GET", "/", false},
		{"twice negated", Not{Not{get}}, "GET", "/", true},

		{"method is case-sensitive", get, "get", "/", false},
		{"method is the whole of it", get, "GETS", "/", false},
		{"unregistered method", Method("X-Y!"), "X-Y!", "/", true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			f, err := compileMatch(tt.match, noDrop(t))
			require.NoError(t, err)
			assert.Equal(t, tt.want, f.holds(on(tt.method, tt.path)))
		})
	}
}

func TestMatchInvalid(t *testing.T) {
	for _, tt := range []struct {
		what  string
		match Match
		err   string
	}{
		{"no condition", nil, "no condition"},
		{"not nothing", Not{}, "not: no condition"},
		{"not invalid", Not{Path("(")}, "not: path \"(\""},
		{"bad expression", Path("("), "missing closing )"},
		{"look-around", Path("(?=/x)"), "invalid or unsupported Perl syntax"},
		{"status of a request", Status{200, 200}, "profiles.Status is not a condition on a request"},
		{"empty method", Method(""), `method "" is not a token`},
		{"method with a space", Method("GET "), `method "GET " is not a token`},
		{"method beyond ASCII", Method("GÉT"), `is not a token`},
		{"a foreign kind", struct{ Match }{All{}}, "is not a condition on a request"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			_, err := compileMatch(tt.match, noDrop(t))
			require.ErrorContains(t, err, tt.err)
			require.EqualError(t, ValidateMatch(tt.match), err.Error())
		})
	}
}

// Invalid members of All and Any are dropped. The remaining members decide. Without
// remaining members the condition is empty.
func TestMatchDropsInvalidMembers(t *testing.T) {
	bad, get := Path("("), Method("GET")
	for _, tt := range []struct {
		what    string
		match   Match
		method  string
		want    bool
		dropped int
	}{
		{"all: the rest decides, true", All{bad, get}, "GET", true, 1},
		{"all: the rest decides, false", All{get, bad}, "PUT", false, 1},
		{"any: the rest decides, true", Any{bad, get}, "GET", true, 1},
		{"any: the rest decides, false", Any{bad, get}, "PUT", false, 1},
		{"all: only invalid ones", All{bad, nil, Not{}}, "GET", true, 3},
		{"any: only invalid ones", Any{bad, nil, Not{bad}}, "GET", false, 3},
		{"deep down", All{Any{All{bad}, bad}, get}, "GET", true, 2},
		{"below not", Not{Any{bad}}, "GET", true, 1},
	} {
		t.Run(tt.what, func(t *testing.T) {
			var dropped []error
			f, err := compileMatch(tt.match, func(err error) { dropped = append(dropped, err) })
			require.NoError(t, err)
			assert.Equal(t, tt.want, f.holds(on(tt.method, "/")))
			assert.Len(t, dropped, tt.dropped)
			for _, err := range dropped {
				require.ErrorContains(t, err, "member of a condition: ")
			}
		})
	}
}

func TestMatchModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := trees().Draw(t, "tree")
		f, err := compileMatch(m, func(error) {})
		require.Equal(t, err, ValidateMatch(m))
		for _, method := range []string{"GET", "PUT", "get", ""} {
			for _, path := range []string{"", "/", "/a", "/b", "/A", "/a/b", "/ab"} {
				holds, valid := naive(m, on(method, path))
				require.Equal(t, valid, err == nil, "%#v: %v", m, err)
				if valid {
					require.Equal(t, holds, f.holds(on(method, path)), "%#v on %s %s", m, method, path)
				}
			}
		}
	})
}

// Match trees evaluate as boolean algebra, as linkerd's own quickchecks have
// it: a tree and its dual agree by De Morgan.
func TestMatchDeMorgan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := rapid.SliceOfN(rapid.SampledFrom([]Match{
			Path("/"), Path("/a"), Method("GET"), All{}, Any{}, Not{Path("/a")},
		}), 0, 4).Draw(t, "members")
		negated := make([]Match, len(members))
		for i, m := range members {
			negated[i] = Not{m}
		}
		path := rapid.SampledFrom([]string{"/", "/a", "/b"}).Draw(t, "path")
		for _, pair := range [][2]Match{{Not{All(members)}, Any(negated)}, {Not{Any(members)}, All(negated)}} {
			left, err := compileMatch(pair[0], func(error) {})
			require.NoError(t, err)
			right, err := compileMatch(pair[1], func(error) {})
			require.NoError(t, err)
			require.Equal(t, left.holds(on("GET", path)), right.holds(on("GET", path)))
		}
	})
}

func TestMatchAllocatesNothing(t *testing.T) {
	if raceEnabled() {
		t.Skip("the race detector empties pools, that of package regexp too")
	}
	f, err := compileMatch(All{
		Not{Method("PUT")}, Any{Path("/a"), Path("/books/[^/]*"), Path(".*/(x|y)z?")}, Method("GET"),
	}, noDrop(t))
	require.NoError(t, err)
	held := true
	allocs := testing.AllocsPerRun(100, func() { held = held && f.holds(on("GET", "/books/17")) && !f.holds(on("GET", "/books/17/author")) })
	assert.True(t, held)
	assert.Zero(t, allocs)
}

func raceEnabled() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func TestProfileValidate(t *testing.T) {
	good := &Profile{
		Name:    "web.default.svc.cluster.local",
		Routes:  []Route{{Match: All{}, Classes: []ResponseClass{{Not{Status{200, 299}}, true}}}},
		Targets: []Target{{"a:80", 1}, {"b:80", 0}},
	}
	require.NoError(t, good.Validate())
	require.NoError(t, new(Profile).Validate())

	bad := &Profile{
		Name: "10.0.0.1",
		Routes: []Route{
			{Name: "first", Match: Path("(")},
			{},
			{Name: "third", Match: All{nil}, Classes: []ResponseClass{{Match: Status{0, 99}}}},
		},
		Targets:     []Target{{"", 1}},
		RetryBudget: &RetryBudget{},
	}
	err := bad.Validate()
	require.Error(t, err)
	assert.Equal(t, strings.Join([]string{
		`Name: "10.0.0.1" is not a DNS name`,
		"Routes[0].Match: route \"first\": path \"(\": error parsing regexp: missing closing ): `^($`",
		`Routes[1].Match: no condition`,
		`Routes[2].Match: route "third": member of a condition: no condition`,
		`Routes[2].Classes[0]: route "third": status 0 to 99 is not within 100 to 999`,
		`Targets[0]: no authority`,
		`RetryBudget: ttl 0s is not from 1s to 60s`,
	}, "\n"), err.Error())
}

// A program finds the field of each mistake without taking the text apart.
func TestFieldErrors(t *testing.T) {
	r := Route{
		Match: All{}, Timeout: -1, Mirrors: []Mirror{{Authority: "a"}, {}}, Faults: []Fault{{Fraction: 2}},
		IdleTimeout: -1, Backends: []Backend{{}, {Redirect: &Redirect{Port: 1}, Faults: []Fault{{}}}},
	}
	err := r.Validate()
	errs, ok := errors.AsType[FieldErrors](err)
	require.True(t, ok)
	var fields []string
	for _, e := range errs {
		fields = append(fields, e.Field)
		require.ErrorIs(t, err, e.Err)
	}
	assert.Equal(t, []string{"Timeout", "IdleTimeout", "Faults[0]", "Mirrors[1]", "Backends[1].Faults[0]"}, fields)
	first, ok := errors.AsType[*FieldError]((&Profile{Routes: []Route{{Match: All{}}, r}}).Validate())
	require.True(t, ok)
	assert.Equal(t, "Routes[1].Timeout", first.Field)
	require.NoError(t, ValidateMatch(All{nil}), "only the member is left out")
	require.EqualError(t, Route{Match: All{nil}}.Validate(), "Match: member of a condition: no condition")
}

func ExampleProfile_Validate() {
	p := &Profile{Routes: []Route{
		{Name: "books", Match: Path("/books/[0-9+")},
		{Name: "authors", Match: Path("/authors")},
	}}
	fmt.Println(p.Validate())
	// Output:
	// Routes[0].Match: route "books": path "/books/[0-9+": error parsing regexp: missing closing ]: `[0-9+$`
}
