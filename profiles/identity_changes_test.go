package profiles

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
)

// Redirects, faults and header changes are part of the identity of a route.
func TestRouteIdentityOfChanges(t *testing.T) {
	route := func(change func(*Route)) Route {
		r := Route{
			RequestHeader:  layer.HeaderMutation{Set: []layer.HeaderField{{Name: "a", Value: "b"}}},
			ResponseHeader: layer.HeaderMutation{Remove: []string{"a"}},
			Redirect:       &Redirect{Host: "b"},
			Faults:         []Fault{{Fraction: 0.5, Status: 503, TTL: time.Hour}},
		}
		change(&r)
		return r
	}
	same := route(func(*Route) {})
	set := make(routeSet[*probe, int])
	set["r"] = append(set["r"], &liveRoute[*probe, int]{def: same})
	assert.NotNil(t, set.find("r", new(route(func(*Route) {}))), "deeply equal")
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
		assert.Nil(t, set.find("r", new(route(change))), what)
	}
}
