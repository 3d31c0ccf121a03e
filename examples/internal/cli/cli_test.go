package cli_test

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/internal/cli"
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
		assert.Equal(t, c.exit, cli.Status(&output, "it", cli.Parse(f, c.args, &output)), c.name)
		assert.Equal(t, c.output, output.String(), c.name)
	}
}

func TestStatus(t *testing.T) {
	var output bytes.Buffer
	cause := errors.New("no luck")
	require.Equal(t, 1, cli.Status(&output, "it", cause))
	require.Equal(t, "it: no luck\n", output.String())
	require.ErrorIs(t, cli.Misuse(cause), cause)
}

// A flag that has an effect only with another flag is an error without it.
func TestParseRequiredFlag(t *testing.T) {
	for args, want := range map[string]string{
		"-lease x":                     "-lease requires -cluster; see -help",
		"-cluster=false -lease x":      "-lease requires -cluster; see -help",
		"-lease x -cluster":            "",
		"-cluster":                     "",
		"-cluster -lease x -nonsense":  "flag provided but not defined: -nonsense; see -help",
		"-lease x -nonsense -cluster ": "flag provided but not defined: -nonsense; see -help",
	} {
		f := flag.NewFlagSet("it", flag.ContinueOnError)
		f.Bool("cluster", false, "with a cluster")
		f.String("lease", "a", "with -cluster: `name` of a Lease")
		err := cli.Parse(f, strings.Fields(args), io.Discard)
		if want == "" {
			require.NoError(t, err, args)
		} else {
			require.EqualError(t, err, want, args)
		}
	}
}

func TestDescribe(t *testing.T) {
	var output bytes.Buffer
	f := flag.NewFlagSet("it", flag.ContinueOnError)
	f.Int("n", 7, "a `number`")
	cli.Describe(f, "it does something.")
	require.ErrorIs(t, cli.Parse(f, []string{"-h"}, &output), flag.ErrHelp)
	require.Equal(t, "it does something.\n\n  -n number\n    \ta number (default 7)\n", output.String())
}
