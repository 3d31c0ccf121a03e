package yamlfile

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A document with aliases and merge keys is that with the values written out.
func TestResolve(t *testing.T) {
	for in, want := range map[string]string{
		"a: &x [1, 2]\nb: *x\n":                                       "a: [1, 2]\nb: [1, 2]\n",
		"a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}\n":                     "a: {p: 1, q: 2}\nb: {q: 3, p: 1}\n",
		"a: &x {p: 1}\nb: &y {q: 2, p: 9}\nc: {<<: [*x, *y], r: 3}\n": "a: {p: 1}\nb: {q: 2, p: 9}\nc: {r: 3, p: 1, q: 2}\n",
		"a: !!str 5\n":  "a: 5\n",
		"a: {<<: {}}\n": "a: {}\n",
	} {
		v := parsed(t, in).Resolve()
		require.Empty(t, v.Mistakes, in)
		wanted := parsed(t, want)
		require.Equal(t, plain(wanted.Node), plain(v.Node), in)
	}
	for in, want := range map[string]string{
		"a: &x\n  b: *x\n":         "f:2:6: *x is within &x itself",
		"a: {<<: 5}\n":             "f:1:9: want a mapping, or a list of mappings, as the value of <<",
		"a: &x 1\nb: {<<: [*x]}\n": "f:1:4: want a mapping, or a list of mappings, as the value of <<",
	} {
		v := parsed(t, in).Resolve()
		require.EqualError(t, Join(v.Mistakes), want, in)
	}
}
