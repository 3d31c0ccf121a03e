package cli

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The output has an error once, and the help if it is requested.
func TestParseErrorOutput(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		output string
		exit   int
	}{
		{"flags", []string{"-n", "1"}, "", 0},
		{"no such flag", []string{"-nonsense"}, "it: flag provided but not defined: -nonsense; see -help\n", 2},
		{"no such value", []string{"-n", "x"}, "it: invalid value \"x\" for flag -n: parse error; see -help\n", 2},
		{"an argument", []string{"-n", "1", "extra"}, "it: \"extra\": arguments must be flags; see -help\n", 2},
		{"help", []string{"-help"}, "Usage of it:\n  -n number\n    \ta number (default 7)\n", 0},
	} {
		var output bytes.Buffer
		f := flag.NewFlagSet("it", flag.ContinueOnError)
		f.Int("n", 7, "a `number`")
		err := Parse(f, c.args, &output)
		if err != nil {
			err = fmt.Errorf("it: %w", err)
		}
		assert.Equal(t, c.exit, Status(&output, err), c.name)
		assert.Equal(t, c.output, output.String(), c.name)
	}
}

func TestStatus(t *testing.T) {
	var output bytes.Buffer
	cause := errors.New("no luck")
	require.Equal(t, 1, Status(&output, cause))
	require.Equal(t, "no luck\n", output.String())
	require.ErrorIs(t, Misuse(cause), cause)
}
