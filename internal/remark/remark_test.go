package remark

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRemarks(t *testing.T) {
	var said []string
	r := Remarks{Say: func(err error) { said = append(said, err.Error()) }}
	round := func(remarks ...string) []string {
		said = nil
		for _, text := range remarks {
			r.Add(errors.New(text))
		}
		r.End()
		return said
	}
	require.Equal(t, []string{"a", "b"}, round("a", "b", "a"))
	require.Empty(t, round("b", "a"))
	require.Equal(t, []string{"c"}, round("a", "c"))
	require.Equal(t, []string{"b"}, round("a", "b"), "it was over")
	require.Empty(t, round())
	require.Equal(t, []string{"a"}, round("a"))

	var many []string
	for i := range 200_000 {
		many = append(many, fmt.Sprint("piece ", i))
	}
	require.Len(t, round(many...), mostRemarks+1)
	require.Equal(t, "and 199990 more", said[mostRemarks])
	require.Empty(t, round(many...))
	require.Equal(t, []string{"and 90 more"}, round(many[:100]...))
	require.Equal(t, []string{"piece 10"}, round(many[1:11]...))
}

func TestRemarksAreShort(t *testing.T) {
	var said []error
	r := Remarks{Say: func(err error) { said = append(said, err) }}
	for range 2 {
		r.Add(errors.New(strings.Repeat("x", 4<<20)))
		r.End()
	}
	require.Len(t, said, 1)
	require.EqualError(t, said[0], strings.Repeat("x", mostText)+"…")
}

func TestRemarksInSilence(t *testing.T) {
	var r Remarks
	r.Add(errors.New("a"))
	r.End()
}
