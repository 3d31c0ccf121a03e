package share_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/internal/share"
)

func TestGroup(t *testing.T) {
	var g share.Group[string, int]
	started, stopped := 0, 0
	use := func(key string) (int, func()) {
		return g.Use(key, func() (int, func()) { started++; return started, func() { stopped++ } })
	}
	first, leaveFirst := use("a")
	second, leaveSecond := use("a")
	other, leaveOther := use("b")
	assert.Equal(t, []int{1, 1, 2, 2}, []int{first, second, other, g.Len()})
	leaveFirst()
	assert.Zero(t, stopped)
	leaveSecond()
	assert.Equal(t, []int{1, 1}, []int{stopped, g.Len()})
	leaveOther()
	third, leaveThird := use("a")
	assert.Equal(t, 3, third)
	leaveThird()
	assert.Equal(t, []int{3, 3, 0}, []int{started, stopped, g.Len()})
}

func TestLatest(t *testing.T) {
	var l share.Latest[string]
	var seen, late share.Position
	first := l.Look(&seen)
	assert.False(t, first.Fresh)
	assert.NoError(t, first.Err)
	failed := errors.New("failed")
	l.Set("a")
	<-first.Next
	l.Fail(failed)
	c := l.Look(&seen)
	assert.Equal(t, "a", c.Value)
	assert.True(t, c.Fresh)
	assert.Equal(t, failed, c.Err)
	c = l.Look(&seen)
	assert.False(t, c.Fresh)
	assert.NoError(t, c.Err, "seen before")
	l.Set("a")
	c = l.Look(&late)
	assert.True(t, c.Fresh)
	assert.NoError(t, c.Err, "the error has ended")
	assert.True(t, l.Look(&seen).Fresh, "an equal value ends the error")
}
