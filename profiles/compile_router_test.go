package profiles_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/profiles"
)

// A Router leaves out expressions that are too large.
func TestRouterLeavesOutLargeExpressions(t *testing.T) {
	large := profiles.Route{Name: "large", Match: profiles.Path("/a(a?){990}")}
	small := profiles.Route{Name: "small", Match: profiles.Path("/small")}
	src, out := newScript(), newLog()
	var bs backends
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src, Log: out.logger()}, access{}, bs.mk)

	src.send(&profiles.Profile{Routes: []profiles.Route{large, small, {Match: profiles.Path("((a?){10}){100}((a?){10}){100}((a?){10}){100}")}}}, nil)
	assert.Equal(t, "large", send(t, r, "GET", "/aaa").route.Name)
	assert.Equal(t, "small", send(t, r, "GET", "/small").route.Name)
	assert.Len(t, out.errors("left out of a profile"), 1)
	src.end()
}

// A profile with very many invalid pieces is some lines of the log, once.
func TestLogManyInvalidParts(t *testing.T) {
	src, out := newScript(), newLog()
	profiles.New(t.Context(), profiles.Config{Target: target, Source: src, Log: out.logger()}, access{}, new(backends).mk)
	match := make(profiles.All, 1000)
	for i := range match {
		match[i] = profiles.Path(fmt.Sprintf("(%d", i))
	}
	for range 3 {
		src.send(&profiles.Profile{Routes: []profiles.Route{{Match: match}}}, nil)
		logged := out.errors("left out of a profile")
		assert.Len(t, logged, 11)
		assert.Equal(t, "and 990 more", logged[10])
	}
	src.end()
}

// Invalid parts of the layers of many routes are some lines of the log, too.
func TestLogManyInvalidRoutes(t *testing.T) {
	src, out := newScript(), newLog()
	profiles.New(t.Context(), profiles.Config{Target: target, Source: src, Log: out.logger()}, access{}, new(backends).mk,
		profiles.WithRouteLayers(resend{}))
	routes := make([]profiles.Route, 1000)
	for i := range routes {
		routes[i] = profiles.Route{Name: fmt.Sprint(i), Match: profiles.Path("/"), Timeout: -1}
	}
	src.send(&profiles.Profile{Routes: routes}, nil)
	assert.Len(t, out.errors("left out of a profile"), 11)
	src.end()
}
