package rustregexp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/internal/rustregexp"
)

func TestCheck(t *testing.T) {
	for _, valid := range []string{
		"", "/a.*", `/users/\d+`, `/users/[^/]+/x`, `[]a]`, `[^]a]`, `[[:alpha:]_]{2,3}`, `a{2}b{3,}`, `\{id\}`, `\x{10FFFF}`, `\p{Greek}+`,
		`\pN`, `(?i)a`, `(?P<n>a)|b`, `[a\]\[]`, `}`, `\.\/`,
	} {
		require.NoError(t, rustregexp.Check(valid), valid)
	}
	for invalid, want := range map[string]string{
		"(": "missing closing )", `/users/{id}`: "{", `a{`: "{", `a{,3}`: "{", `{`: "{", `\Qa.b\E`: `\Q`, `\101`: `\1`, `\0`: `\0`, `\C`: `\C`,
		`[[]`: "[", `[a[b]`: "[", `[a&&b]`: "&&", `[a--b]`: "", `[~~]`: "~~",
	} {
		err := rustregexp.Check(invalid)
		require.Error(t, err, invalid)
		require.ErrorContains(t, err, want, invalid)
	}
}
