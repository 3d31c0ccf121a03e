package panics_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/panics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type observer struct {
	name   string
	panics bool
	ended  *[]string
}

func (o observer) End(err error) {
	*o.ended = append(*o.ended, o.name+": "+err.Error())
	if o.panics {
		panic(o.name)
	}
}

func TestEndAfterPanic(t *testing.T) {
	var ended []string
	all := []observer{{"a", false, &ended}, {"b", true, &ended}, {"c", true, &ended}, {"d", false, &ended}}
	require.PanicsWithValue(t, "c", func() { panics.End(all, io.EOF) })
	require.Equal(t, []string{"a: EOF", "b: EOF", "c: EOF", "d: EOF"}, ended)

	ended = nil
	panics.End(all[:1], io.EOF)
	panics.End(all[:0], io.EOF)
	require.Equal(t, []string{"a: EOF"}, ended)
}

func TestContain(t *testing.T) {
	require.NoError(t, panics.Contain(func() {}))
	var contained *panics.Error
	err := panics.Contain(func() { panic(io.EOF) })
	require.ErrorAs(t, err, &contained)
	require.Regexp(t, `^panic at panics_test\.go:\d+: EOF$`, err.Error())
	require.NotErrorIs(t, err, io.EOF)
	require.Contains(t, string(contained.Stack), "TestContain")
}

func TestDo(t *testing.T) {
	require.NoError(t, panics.Do("Make", func() error { return nil }))
	require.Equal(t, io.EOF, panics.Do("Make", func() error { return io.EOF }))

	err := panics.Do("Make", func() error { panic("boom") })
	require.Regexp(t, `^Make: panic at panics_test\.go:\d+: boom$`, err.Error())
	require.ErrorAs(t, err, new(*panics.Error))

	var unmade map[string]int
	err = panics.Do("Ready", func() error { unmade["x"]++; return nil })
	require.Regexp(t, `^Ready: panic at panics_test\.go:\d+: assignment to entry in nil map$`, err.Error())
}
