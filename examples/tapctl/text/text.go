// Package text formats text from untrusted sources for a terminal.
package text

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// Clean returns s with unprintable characters escaped as in Go strings. These include
// control characters and characters that change the direction of text.
func Clean(s string) string {
	if printable(s) {
		return s
	}
	var b strings.Builder
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		// Invalid UTF-8 is shown byte by byte.
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			// The result is quoted, and the quotes are not wanted.
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// CleanLines returns s with Clean applied to each line. It is for joined errors, which consist of
// several lines.
func CleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = Clean(l)
	}
	return strings.Join(lines, "\n")
}

// printable reports whether s is valid UTF-8 without unprintable characters.
func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// Width returns the number of terminal columns that s occupies.
func Width(s string) int { return ansi.StringWidth(s) }

// Fit shortens s to n columns by replacing a part in the middle with "…". It keeps more of the
// end than of the beginning, because similar names usually differ at the end.
func Fit(s string, n int) string {
	// The order matters: each case assumes the ones before. Below 6 columns, two parts would be too short to read.
	switch w := Width(s); {
	case w <= n:
		return s
	case n <= 0:
		return ""
	case n < 6:
		return ansi.Truncate(s, n, "…")
	default:
		// A quarter of the width is for the beginning.
		begin := ansi.Truncate(s, (n-1)/4, "")
		end := ""
		for skip := w - (n - 1 - Width(begin)); skip < w; skip++ { // retries if a wide character was cut in half
			if end = ansi.TruncateLeft(s, skip, ""); Width(begin)+1+Width(end) <= n {
				break
			}
		}
		return begin + "…" + end
	}
}

// Pad returns s with spaces up to a width of n columns. The spaces come after s, or
// before s if right is true.
func Pad(s string, n int, right bool) string {
	space := strings.Repeat(" ", max(0, n-Width(s)))
	if right {
		return space + s
	}
	return s + space
}

// Duration returns the text of d without decimals. The unit is µs below 1 ms, ms below 1
// s, and otherwise s.
func Duration(d time.Duration) string {
	switch {
	case d.Round(time.Microsecond) < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Round(time.Microsecond).Microseconds())
	case d.Round(time.Millisecond) < time.Second:
		return fmt.Sprintf("%dms", d.Round(time.Millisecond).Milliseconds())
	}
	return fmt.Sprintf("%.0fs", d.Seconds())
}

// Exact returns the text of d with decimals. It rounds d to 0.1 µs below 1 ms, to 10 µs
// below 1 s, and otherwise to 1 ms.
func Exact(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond / 10).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// Count returns n in decimal with a comma before each group of three digits, such as 1,234.
func Count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	// The commas are inserted from the right.
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Rate returns r, a number of events per second, as text. Below 10, the text includes one
// decimal.
func Rate(r float64) string {
	// 9.95 would be rounded to 10.0.
	if r < 9.95 {
		return fmt.Sprintf("%.1f", r)
	}
	return fmt.Sprintf("%.0f", r)
}

// Percent returns count as a percentage of total, or "-" if total is 0. It returns 100.00% only
// if both are equal, so that a single failure among many requests stays visible.
func Percent(count, total uint64) string {
	if total == 0 {
		return "-"
	}
	share := float64(count) / float64(total)
	if count < total {
		// Rounding must not hide a failure.
		share = min(share, 0.9999)
	}
	return fmt.Sprintf("%.2f%%", 100*share)
}

// Bytes returns a size of n bytes as text, such as 999B, 1.5kB or 20.0MB. The units are powers of
// 1000.
func Bytes(n uint64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%dB", n)
	}
	size := float64(n) / 1000
	unit := 0
	for ; size >= 999.95 && unit < len(units)-1; unit++ { // otherwise it would be 1000.0 of the smaller unit
		size /= 1000
	}
	return fmt.Sprintf("%.1f%cB", size, units[unit])
}

// Plural returns n and noun, with "s" after noun unless n is 1: "1 row", "2 rows".
func Plural(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Count(n) + " " + noun + "s"
}

// Fill joins parts with spaces, beginning with the first one. It stops before the first
// part that does not fit into n columns.
func Fill(parts []string, n int) string {
	const space = "  "
	line := ""
	for i, p := range parts {
		// Parts are separated by two spaces, except before the first.
		if i > 0 {
			p = space + p
		}
		if Width(line)+Width(p) > n {
			break
		}
		line += p
	}
	return line
}
