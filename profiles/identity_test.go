package profiles

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRouteIdentity(t *testing.T) {
	route := func(change func(*Route)) Route {
		r := Route{
			Name: "a", Match: All{Method("GET"), Path("/a")},
			Classes: []ResponseClass{{Status{500, 599}, true}},
			Labels:  map[string]string{"a": "1", "b": "2", "c": "3"},
		}
		change(&r)
		return r
	}
	same := route(func(*Route) {})
	set := make(routeSet[*probe, int])
	set["r"] = append(set["r"], &liveRoute[*probe, int]{def: same})
	assert.NotNil(t, set.find("r", new(route(func(r *Route) {
		r.Labels = map[string]string{"c": "3", "b": "2", "a": "1"}
		r.Match = All{Method("GET"), Path("/a")}
	}))))
	for what, change := range map[string]func(*Route){
		"name":            func(r *Route) { r.Name = "b" },
		"kind of leaf":    func(r *Route) { r.Match = All{Path("GET"), Path("/a")} },
		"kind of path":    func(r *Route) { r.Match = All{Method("GET"), PathPrefix("/a")} },
		"kind of text":    func(r *Route) { r.Match = Header{Name: "a", Value: Exact("GET")} },
		"kind of it":      func(r *Route) { r.Match = Header{Name: "a", Value: Prefix("GET")} },
		"no labels":       func(r *Route) { r.Labels = nil },
		"empty labels":    func(r *Route) { r.Labels = map[string]string{} },
		"pairs":           func(r *Route) { r.Labels = map[string]string{"a": "1b:2"} },
		"kind of list":    func(r *Route) { r.Match = Any{Method("GET"), Path("/a")} },
		"order":           func(r *Route) { r.Match = All{Path("/a"), Method("GET")} },
		"quotes":          func(r *Route) { r.Match = All{Method(`GET", "/a`)} },
		"class":           func(r *Route) { r.Classes[0].Failure = false },
		"range":           func(r *Route) { r.Classes[0].Match = Status{501, 599} },
		"label":           func(r *Route) { r.Labels["a"] = "0" },
		"retry":           func(r *Route) { r.Retry = &Retry{} },
		"retry all":       func(r *Route) { r.Retry = &Retry{NonIdempotent: true} },
		"no status":       func(r *Route) { r.Retry = &Retry{Statuses: []Status{}} },
		"timeout":         func(r *Route) { r.Timeout = 1 },
		"attempt timeout": func(r *Route) { r.AttemptTimeout = 1 },
		"max retries":     func(r *Route) { r.Retry = &Retry{Max: 1} },
		"hedge":           func(r *Route) { r.Hedge = 1 },
		"limit":           func(r *Route) { r.Limit = 1 },
		"rate":            func(r *Route) { r.Rate.PerSecond = 1 },
		"burst":           func(r *Route) { r.Rate.Burst = 1 },
	} {
		different := route(change)
		assert.Nil(t, set.find("r", &different), what)
		set["r"] = append(set["r"], &liveRoute[*probe, int]{def: different})
	}
}

// thousand are routes of which one is other than the next profile's.
func thousand(changed string) *Profile {
	p := &Profile{}
	for i := range 1000 {
		path := fmt.Sprintf("/a/%d/[a-z]+", i)
		if i == 500 {
			path = changed
		}
		p.Routes = append(p.Routes, Route{
			Name: path, Match: All{Method("GET"), Path(path)}, Labels: map[string]string{"route": path},
		})
	}
	return p
}

// Unchanged routes are not compiled again.
func TestSwapKeepsRoutes(t *testing.T) {
	r := routerFor()
	before := r.compile(thousand("/x/[a-z]+"), nil)
	after := r.compile(thousand("/y/[a-z]+"), before)
	require.Len(t, after.routes, 1000)
	for i := range after.routes {
		if i == 500 {
			assert.NotSame(t, before.routes[i], after.routes[i])
			continue
		}
		require.Same(t, before.routes[i], after.routes[i])
	}
	assert.Equal(t, "/y/[a-z]+", found(after, on("GET", "/y/b")))
	assert.Empty(t, found(after, on("GET", "/x/b")))
}

// A route with a condition of another kind, which otherwise reads the same, is
// another one.
func TestSwapConditionKind(t *testing.T) {
	r := routerFor()
	before := r.compile(&Profile{Routes: []Route{{Name: "a", Match: Path("/a")}}}, nil)
	after := r.compile(&Profile{Routes: []Route{{Name: "a", Match: PathPrefix("/a")}}}, before)
	assert.Empty(t, found(before, on("GET", "/a/b")))
	assert.Equal(t, "a", found(after, on("GET", "/a/b")))
}

// BenchmarkCompile is a profile of a thousand routes when all are new, and when
// one is.
func BenchmarkCompile(b *testing.B) {
	r := routerFor()
	first, second := thousand("/x/[a-z]+"), thousand("/y/[a-z]+")
	before := r.compile(first, nil)
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.compile(second, nil)
		}
	})
	b.Run("one changed", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.compile(second, before)
		}
	})
}
