package profiles

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
)

// What a route answers and changes is part of what it is.
func TestRouteIdentityOfChanges(t *testing.T) {
	route := func(change func(*Route)) string {
		r := Route{
			RequestHeader:  layer.HeaderMutation{Set: []layer.HeaderField{{Name: "a", Value: "b"}}},
			ResponseHeader: layer.HeaderMutation{Remove: []string{"a"}},
			Redirect:       &Redirect{Host: "b"},
			Faults:         []Fault{{Fraction: 0.5, Status: 503, TTL: time.Hour}},
		}
		change(&r)
		return string(r.appendIdentity(nil))
	}
	same := route(func(*Route) {})
	assert.Equal(t, same, route(func(*Route) {}), "deeply equal")
	for what, change := range map[string]func(*Route){
		"request header":       func(r *Route) { r.RequestHeader.Set[0].Value = "c" },
		"kind of change":       func(r *Route) { r.RequestHeader.Add, r.RequestHeader.Set = r.RequestHeader.Set, nil },
		"response header":      func(r *Route) { r.ResponseHeader.Remove[0] = "c" },
		"redirect":             func(r *Route) { r.Redirect.Port = 1 },
		"no redirect":          func(r *Route) { r.Redirect = nil },
		"fault":                func(r *Route) { r.Faults[0].Fraction = 0.25 },
		"time to live":         func(r *Route) { r.Faults[0].TTL++ },
		"one more of the same": func(r *Route) { r.Faults = append(r.Faults, r.Faults[0]) },
	} {
		assert.NotEqual(t, same, route(change), what)
	}
}

// Of faults that profiles have no more nothing is kept.
func TestFaultLivesAreForgotten(t *testing.T) {
	lives := make(faultLives)
	a := Route{Name: "a", Faults: []Fault{{Fraction: 1, Status: 500, TTL: time.Hour}, {Fraction: 0, Status: 503, TTL: time.Hour}}}
	b := Route{Name: "b", Faults: a.Faults[:1]}
	lives.left(a)
	lives.left(b)
	assert.Len(t, lives, 3)
	lives.keep(&Profile{Routes: []Route{b, {Name: "c"}}})
	assert.Len(t, lives, 1)
	lives.keep(&Profile{})
	assert.Empty(t, lives)
}
