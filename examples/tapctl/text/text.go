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

// Width is how many columns of a terminal s takes.
func Width(s string) int { return ansi.StringWidth(s) }

// Fit returns s in at most n columns. It replaces a part of the middle by "…" and
// keeps more of the end, where names of one kind differ.
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
		for left := w - (n - 1 - Width(begin)); left < w; left++ { // again where half of a wide character is left
			if end = ansi.TruncateLeft(s, left, ""); Width(begin)+1+Width(end) <= n {
				break
			}
		}
		return begin + "…" + end
	}
}

// Pad returns s with spaces up to n columns, before it or after it.
func Pad(s string, n int, right bool) string {
	space := strings.Repeat(" ", max(0, n-Width(s)))
	if right {
		return space + s
	}
	return s + space
}

// Duration prints d in the largest unit that leaves it above 1, without
// decimals.
func Duration(d time.Duration) string {
	switch {
	case d.Round(time.Microsecond) < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Round(time.Microsecond).Microseconds())
	case d.Round(time.Millisecond) < time.Second:
		return fmt.Sprintf("%dms", d.Round(time.Millisecond).Milliseconds())
	}
	return fmt.Sprintf("%.0fs", d.Seconds())
}

// Exact prints d with three digits or so, for where one duration is looked at.
func Exact(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond / 10).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// Count prints n with commas between thousands.
func Count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Rate prints how often something happens in a second.
func Rate(r float64) string {
	if r < 9.95 {
		return fmt.Sprintf("%.1f", r)
	}
	return fmt.Sprintf("%.0f", r)
}

// Percent prints a share of 0 to 1. Only all is 100 %.
func Percent(part, of uint64) string {
	if of == 0 {
		return "-"
	}
	share := float64(part) / float64(of)
	if part < of {
		share = min(share, 0.9999)
	}
	return fmt.Sprintf("%.2f%%", 100*share)
}

// Bytes prints a size in the largest unit that leaves it above 1.
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

// Plural is "1 row", "2 rows".
func Plural(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Count(n) + " " + noun + "s"
}

// Fill joins as many of parts as fit into n columns; the first are worth most.
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
