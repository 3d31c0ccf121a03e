package yamlfile

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func TestSyntaxError(t *testing.T) {
	for in, want := range map[string]int{
		"a: 1\n b: 2\nc: 3\n": 2,
		"a: [\n1,\n2\n":       3,
		"a: b\n---\n\n}\n":    4,
		strings.Repeat("#\n", 1<<20) + "a: 1\n b: 2\n": 1<<20 + 2,
	} {
		_, err := Documents("f", []byte(in), 10)
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.NotEmpty(t, e.Reason)
		assert.Equal(t, want, e.Line, e)
	}
	line, rest := cutLine("no line")
	assert.Zero(t, line)
	assert.Equal(t, "no line", rest)
}

func parsed(t *testing.T, text string) Value {
	t.Helper()
	roots, err := Documents("f", []byte(text), 1)
	require.NoError(t, err)
	return Value{File: NewFile("f", []byte(text)), Node: roots[0]}
}

// plain returns the values below n as text.
func plain(n *yaml.Node) string {
	text := n.Value
	for _, child := range n.Content {
		text += "(" + plain(child) + ")"
	}
	return text
}

// A program reports mistakes in its values by their paths.
func TestProgram(t *testing.T) {
	port := 80
	v := Program(map[string]any{
		"name": "a", "port": &port, "none": nil, "ratio": 0.5, "big": 1e21, "list": []string{"x", "y"},
		"net": netip.MustParsePrefix("10.0.0.0/8"), "absent": (*int)(nil), "map": map[string]bool{"on": true},
	})
	require.Equal(t, "(absent)()(big)(1000000000000000000000)(list)((x)(y))(map)((on)(true))(name)(a)(net)(10.0.0.0/8)(none)()(port)(80)(ratio)(0.5)",
		plain(v.Node))
	require.False(t, v.Has("absent"))
	v.At("list").Item(1).Failf("want x")
	v.At("list").Item(2).At("a b").Rejectf(7, "want %d", 8)
	require.EqualError(t, Join(v.Mistakes), "list[1] \"y\": want x\nlist[2][\"a b\"] \"7\": want 8")
}
