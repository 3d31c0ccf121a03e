package file

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// A file is rejected with valid line numbers, or its targets are the same after writing
// and parsing them again.
func FuzzParse(f *testing.F) {
	example, err := os.ReadFile("../../examples/destination/destination.yaml")
	require.NoError(f, err)
	f.Add(example)
	for _, seed := range []string{
		"", "a\n---", "destinations:", "destinations: {}\n---\n", "destinations: &a {x: *a}", "destinations:\n  a:\n  b\n c: d",
		"destinations: {a.b: {exists: false}, \"\\x7f\": {}, ~: , ? [a] : b}",
		`{"destinations":{"w":{"endpoints":[{"addr":"10.0.0.1:80","labels":{"a\/b":"\ud83d\ude00` + "\x7f" + `\\"}}]}}}`,
		in("endpoints: [{addr: '[::1]:80', identity: spiffe://x/y, server_name: z, authority: 'q:1', weight: 3}]"),
		one("protocol: h2, opaque_port: 4143, labels: {a: b, <<: {c: d}}"),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		targets, err := Parse("f", data)
		if err != nil {
			require.Nil(t, targets)
			requireLines(t, err, 1+bytes.Count(data, []byte("\n")))
			return
		}
		for name, endpoints := range targets {
			require.NoError(t, checkName(name))
			for i, e := range endpoints {
				require.True(t, e.Addr.IsValid() && e.Addr.Port() > 0)
				require.True(t, i == 0 || endpoints[i-1].Addr.Compare(e.Addr) < 0, "in order, and each once")
			}
		}
		again, err := Parse("f", render(t, targets))
		require.NoError(t, err)
		require.Len(t, again, len(targets))
		for name, endpoints := range targets {
			require.True(t, (&view{last: &content{}, exists: true, endpoints: endpoints, target: name}).is(again), name)
		}
	})
}

func requireLines(t *testing.T, err error, lines int) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok)
	last := 1
	for _, e := range joined.Unwrap() {
		mistake, ok := e.(*Error)
		require.True(t, ok)
		require.NotEmpty(t, mistake.Reason)
		require.LessOrEqual(t, last, mistake.Line, "in the order of the lines")
		last = mistake.Line
	}
	require.LessOrEqual(t, last, lines)
}

// is reports whether targets say of v's target what v does.
func (v *view) is(targets map[string][]resolve.Endpoint) bool {
	return !v.changed(&content{Value: targets})
}
