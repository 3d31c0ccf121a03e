package text_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/examples/tapctl/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"/api/ä Ａ":                "/api/ä Ａ",
		"a\x1b[2Jb":               `a\x1b[2Jb`,
		"a\nb\tc\rd":              `a\nb\tc\rd`,
		"a\xffb":                  `a\xffb`,
		"\u202egnp.exe":           `\u202egnp.exe`,
		"\u009b31m":               `\u009b31m`,
		`C:\n "as it is written"`: `C:\n "as it is written"`,
	} {
		require.Equal(t, want, text.Clean(in))
	}
}

func TestCleanLines(t *testing.T) {
	for in, want := range map[string]string{
		"":                          "",
		"one":                       "one",
		"one\ntwo\n":                "one\ntwo\n",
		"a\x1b]0;t\x07\nb\r\u202ec": `a\x1b]0;t\a` + "\n" + `b\r\u202ec`,
	} {
		require.Equal(t, want, text.CleanLines(in))
	}
}

func FuzzClean(f *testing.F) {
	f.Add("/a\x1b]0;title\x07")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range text.Clean(s) {
			require.True(t, unicode.IsPrint(r), "%q", r)
		}
	})
}

func TestCleanJSON(t *testing.T) {
	var out strings.Builder
	require.NoError(t, text.WriteJSON(&out, map[string]any{"\u009b\n": []string{"/\x1b\x7f\u202e\U000e0041 ä<"}}))
	lines := []string{"{", `  "\u009b\n": [`, `    "/\u001b\u007f\u202e\udb40\udc41 ä\u003c"`, "  ]", "}", ""}
	require.Equal(t, lines, strings.Split(out.String(), "\n"))
	require.Error(t, text.WriteJSON(&out, func() {}))
}

func FuzzCleanJSON(f *testing.F) {
	f.Add("/\x1b[2J\u009b2J", "\u202e\x7f")
	f.Fuzz(func(t *testing.T, name, value string) {
		v := map[string][]string{strings.ToValidUTF8(name, "?"): {strings.ToValidUTF8(value, "?")}}
		var out strings.Builder
		require.NoError(t, text.WriteJSON(&out, v))
		for _, r := range out.String() {
			require.True(t, r == '\n' || unicode.IsPrint(r), "%q", r)
		}
		var again map[string][]string
		require.NoError(t, json.Unmarshal([]byte(out.String()), &again))
		require.Equal(t, v, again)
	})
}

func TestFit(t *testing.T) {
	const path = "/emojivoto.v1.VotingService/VoteDoughnut"
	require.Equal(t, path, text.Fit(path, len(path)))
	require.Equal(t, "/emo…ce/VoteDoughnut", text.Fit(path, 20))
	require.Equal(t, "/em…", text.Fit(path, 4))
	require.Empty(t, text.Fit(path, 0))
	require.Equal(t, "Ａ…ＢＡＢ", text.Fit("ＡＢＡＢＡＢＡＢＡＢ", 10))
}

// The result of Fit has at most n columns.
func TestFitWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := text.Clean(rapid.String().Draw(t, "text"))
		n := rapid.IntRange(-1, 30).Draw(t, "columns")
		require.LessOrEqual(t, text.Width(text.Fit(s, n)), max(n, 0), "%q", s)
	})
}

func TestNumbers(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0µs": 0, "999µs": 999400 * time.Nanosecond, "1ms": 999600 * time.Nanosecond, "12ms": 12400 * time.Microsecond,
		"1s": 999600 * time.Microsecond, "2s": 1600 * time.Millisecond,
	} {
		require.Equal(t, want, text.Duration(d))
	}
	require.Equal(t, "7.2µs", text.Exact(7234*time.Nanosecond))
	require.Equal(t, "2.99ms", text.Exact(2991*time.Microsecond))
	require.Equal(t, "1.234s", text.Exact(1234400*time.Microsecond))
	for want, n := range map[string]uint64{
		"0B": 0, "999B": 999, "1.0kB": 1000, "999.9kB": 999_949, "1.0MB": 999_950, "12.3MB": 12_345_678, "1.0PB": 1e15, "18.4EB": 1<<64 - 1,
	} {
		require.Equal(t, want, text.Bytes(n))
	}
	require.Equal(t, "1,234,567", text.Count(1_234_567))
	require.Equal(t, "999", text.Count(999))
	require.Equal(t, "1 row", text.Plural(1, "row"))
	require.Equal(t, "0 rows", text.Plural(0, "row"))
	require.Equal(t, "9.9", text.Rate(9.94))
	require.Equal(t, "10", text.Rate(9.96))
	require.Equal(t, "-", text.Percent(0, 0))
	require.Equal(t, "99.99%", text.Percent(999_999, 1_000_000), "not all")
	require.Equal(t, "100.00%", text.Percent(3, 3))
	require.Equal(t, "0.00%", text.Percent(0, 3))
}

func TestFill(t *testing.T) {
	keys := []string{"q quit", "? help", "p pause"}
	require.Equal(t, "q quit  ? help  p pause", text.Fill(keys, 80))
	require.Equal(t, "q quit  ? help", text.Fill(keys, 22))
	require.Empty(t, text.Fill(keys, 3))
}
