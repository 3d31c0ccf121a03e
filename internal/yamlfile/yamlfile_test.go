package yamlfile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSyntaxError(t *testing.T) {
	decode := func(data []byte) error {
		_, err := Documents(data, 10)
		return err
	}
	for in, want := range map[string]int{
		"a: 1\n b: 2\nc: 3\n": 2,
		"a: [\n1,\n2\n":       3,
		"a: b\n---\n\n}\n":    4,
		strings.Repeat("#\n", 1<<20) + "a: 1\n b: 2\n": 1<<20 + 2,
	} {
		err := decode([]byte(in))
		require.Error(t, err)
		line, reason := SyntaxError([]byte(in), err, decode)
		assert.NotEmpty(t, reason)
		assert.Equal(t, want, line, reason)
	}
	line, rest := CutLine("no line")
	assert.Zero(t, line)
	assert.Equal(t, "no line", rest)
}
