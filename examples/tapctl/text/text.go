// Package text formats untrusted text for a terminal.
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

// Clean escapes characters that are not printable, as Go does. These include control
// characters and those that change the direction of text.
func Clean(s string) string {
	if printable(s) {
		return s
	}
	var b strings.Builder
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// CleanLines is Clean for each line of s, for joined errors.
func CleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = Clean(l)
	}
	return strings.Join(lines, "\n")
}

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

// Width returns the number of terminal columns of s.
func Width(s string) int { return ansi.StringWidth(s) }

// Fit returns s in at most n columns. It replaces a part in the middle by "…". The end is
// longer than the beginning, because names of one kind differ there.
func Fit(s string, n int) string {
	switch w := Width(s); {
	case w <= n:
		return s
	case n <= 0:
		return ""
	case n < 6:
		return ansi.Truncate(s, n, "…")
	default:
		begin := ansi.Truncate(s, (n-1)/4, "")
		end := ""
		for left := w - (n - 1 - Width(begin)); left < w; left++ { // retries if a wide character was cut in half
			if end = ansi.TruncateLeft(s, left, ""); Width(begin)+1+Width(end) <= n {
				break
			}
		}
		return begin + "…" + end
	}
}

// Pad returns s with spaces up to n columns. With right, the spaces come before s.
func Pad(s string, n int, right bool) string {
	space := strings.Repeat(" ", max(0, n-Width(s)))
	if right {
		return space + s
	}
	return s + space
}

// Duration returns d without decimals, in the largest unit in which it is above 1.
func Duration(d time.Duration) string {
	switch {
	case d.Round(time.Microsecond) < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Round(time.Microsecond).Microseconds())
	case d.Round(time.Millisecond) < time.Second:
		return fmt.Sprintf("%dms", d.Round(time.Millisecond).Milliseconds())
	}
	return fmt.Sprintf("%.0fs", d.Seconds())
}

// Exact returns d with about three digits, for places that show a single duration.
func Exact(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond / 10).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// Count returns n with commas between thousands.
func Count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Rate returns the text of a number of events per second.
func Rate(r float64) string {
	if r < 9.95 {
		return fmt.Sprintf("%.1f", r)
	}
	return fmt.Sprintf("%.0f", r)
}

// Percent returns part in per cent of whole. It returns 100 % only if both are equal.
func Percent(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	share := float64(part) / float64(whole)
	if part < whole {
		share = min(share, 0.9999)
	}
	return fmt.Sprintf("%.2f%%", 100*share)
}

// Bytes returns a size in the largest unit in which it is above 1.
func Bytes(n uint64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%dB", n)
	}
	size, unit := float64(n)/1000, 0
	for ; size >= 999.95 && unit < len(units)-1; unit++ { // otherwise it would be 1000.0 of the smaller unit
		size /= 1000
	}
	return fmt.Sprintf("%.1f%cB", size, units[unit])
}

// Plural returns n with the noun in singular or plural: "1 row", "2 rows".
func Plural(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Count(n) + " " + noun + "s"
}

// Fill joins the first parts, as many as fit into n columns.
func Fill(parts []string, n int) string {
	const space = "  "
	line := ""
	for i, p := range parts {
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
