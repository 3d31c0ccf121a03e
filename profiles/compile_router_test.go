package profiles_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/profiles"
)

// A Router leaves out expressions that are too large, alone and together. Unchanged
// routes count too.
func TestRouterLeavesOutLargeExpressions(t *testing.T) {
	large := func(path string) profiles.Route {
		match := make(profiles.All, 3) // of 4000 instructions each
		for i := range match {
			match[i] = profiles.Path(fmt.Sprintf("%s(a?){99%d}", path, i%10))
		}
		return profiles.Route{Name: path, Match: match}
	}
	a, b, small := large("/a"), large("/b"), profiles.Route{Name: "small", Match: profiles.Path("/small")}
	src, out := newScript(), newLog()
	var bs backends
	r := profiles.New(t.Context(), target, src, access{}, bs.mk, out.option())

	src.send(&profiles.Profile{Routes: []profiles.Route{a, small}}, nil)
	assert.Equal(t, "/a", send(t, r, "GET", "/aaa").route.Name)
	assert.Empty(t, out.errors("left out of a profile"))

	src.send(&profiles.Profile{Routes: []profiles.Route{b, a, small, {Match: profiles.Path("((a?){10}){100}((a?){10}){100}((a?){10}){100}")}}}, nil)
	assert.Nil(t, send(t, r, "GET", "/aaa").route)
	assert.Equal(t, "/b", send(t, r, "GET", "/baa").route.Name)
	assert.Equal(t, "small", send(t, r, "GET", "/small").route.Name)
	assert.Len(t, out.errors("left out of a profile"), 2)
	src.end()
}

// A profile with very many invalid pieces is some lines of the log, once.
func TestLogOfManyInvalidPieces(t *testing.T) {
	src, out := newScript(), newLog()
	profiles.New(t.Context(), target, src, access{}, new(backends).mk, out.option())
	match := make(profiles.All, 1000)
	for i := range match {
		match[i] = profiles.Path(fmt.Sprintf("(%d", i))
	}
	for range 3 {
		src.send(&profiles.Profile{Routes: []profiles.Route{{Match: match}}}, nil)
		said := out.errors("left out of a profile")
		assert.Len(t, said, 11)
		assert.Equal(t, "and 990 more", said[10])
	}
	src.end()
}
