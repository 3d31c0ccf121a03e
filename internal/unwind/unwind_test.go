package unwind_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/unwind"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type observer struct {
	name   string
	panics bool
	told   *[]string
}

func (o observer) End(err error) {
	*o.told = append(*o.told, o.name+": "+err.Error())
	if o.panics {
		panic(o.name)
	}
}

func TestAllAreTold(t *testing.T) {
	var told []string
	all := []observer{{"a", false, &told}, {"b", true, &told}, {"c", true, &told}, {"d", false, &told}}
	require.PanicsWithValue(t, "c", func() { unwind.End(all, io.EOF) })
	require.Equal(t, []string{"a: EOF", "b: EOF", "c: EOF", "d: EOF"}, told)

	told = nil
	unwind.End(all[:1], io.EOF)
	unwind.End(all[:0], io.EOF)
	require.Equal(t, []string{"a: EOF"}, told)
}
