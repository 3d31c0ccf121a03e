package oncelog

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLoggerRounds(t *testing.T) {
	var logged []string
	r := Logger{Log: func(err error) { logged = append(logged, err.Error()) }}
	round := func(texts ...string) []string {
		logged = nil
		for _, text := range texts {
			r.Add(errors.New(text))
		}
		r.End()
		return logged
	}
	require.Equal(t, []string{"a", "b"}, round("a", "b", "a"))
	require.Empty(t, round("b", "a"))
	require.Equal(t, []string{"c"}, round("a", "c"))
	require.Equal(t, []string{"b"}, round("a", "b"), "not in the last round")
	require.Empty(t, round())
	require.Equal(t, []string{"a"}, round("a"))

	var many []string
	for i := range 200_000 {
		many = append(many, fmt.Sprint("piece ", i))
	}
	require.Len(t, round(many...), maxTexts+1)
	require.Equal(t, "and 199990 more", logged[maxTexts])
	require.Empty(t, round(many...))
	require.Equal(t, []string{"and 90 more"}, round(many[:100]...))
	require.Equal(t, []string{"piece 10"}, round(many[1:11]...))
}

func TestLoggerLongTexts(t *testing.T) {
	var logged []error
	r := Logger{Log: func(err error) { logged = append(logged, err) }}
	for range 2 {
		r.Add(errors.New(strings.Repeat("x", 4<<20)))
		r.End()
	}
	require.Len(t, logged, 1)
	require.EqualError(t, logged[0], strings.Repeat("x", maxBytes)+"…")
}

func TestLoggerWithoutLog(t *testing.T) {
	var r Logger
	r.Add(errors.New("a"))
	r.End()
}
