package top

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The columns of `linkerd viz top`; the first four may shrink or grow.
const (
	sourceWidth = 23
	targetWidth = 23
	methodWidth = 10
	pathWidth   = 37
	fixedWidth  = 6 + 3*7 + 13 // Count, Best, Worst, Last, Success Rate and the gaps between
)

// Write prints the rows as a table of at most width columns and height lines;
// 0 is no bound, and then no path is cut.
func Write(w io.Writer, rows []Row, width, height int) error {
	path := pathWidth
	if width == 0 {
		for _, r := range rows {
			path = max(path, utf8.RuneCountInString(r.Path))
		}
	} else {
		path = max(10, width-sourceWidth-targetWidth-methodWidth-fixedWidth-4)
	}
	var b strings.Builder
	line := func(source, destination, method, at, count, best, worst, last, rate string) {
		fmt.Fprintf(&b, "%-*s %-*s %-*s %-*s %6s %6s %6s %6s %12s\n",
			sourceWidth, fit(source, sourceWidth), targetWidth, fit(destination, targetWidth),
			methodWidth, fit(method, methodWidth), path, fit(at, path), count, best, worst, last, rate)
	}
	line("Source", "Destination", "Method", "Path", "Count", "Best", "Worst", "Last", "Success Rate")
	for i, r := range rows {
		if height > 0 && i >= height-1 {
			break
		}
		line(r.Source, r.Destination, r.Method, r.Path, strconv.Itoa(r.Count),
			short(r.Best), short(r.Worst), short(r.Last), fmt.Sprintf("%.2f%%", 100*r.SuccessRate()))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// fit cuts s to n runes, and says that it did.
func fit(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// short prints a duration in the largest unit that leaves it above 1, without
// decimals.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Round(time.Microsecond).Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Round(time.Millisecond).Milliseconds())
	}
	return fmt.Sprintf("%.0fs", d.Seconds())
}

// WriteJSON prints the rows as an array of objects.
func WriteJSON(w io.Writer, rows []Row) error {
	if rows == nil {
		rows = []Row{}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(rows)
}

// MarshalJSON writes times in milliseconds.
func (r Row) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Source      string  `json:"source"`
		Destination string  `json:"destination"`
		Method      string  `json:"method"`
		Path        string  `json:"path"`
		Count       int     `json:"count"`
		Best        float64 `json:"best_ms"`
		Worst       float64 `json:"worst_ms"`
		Last        float64 `json:"last_ms"`
		SuccessRate float64 `json:"success_rate"`
	}{r.Source, r.Destination, r.Method, r.Path, r.Count, ms(r.Best), ms(r.Worst), ms(r.Last), r.SuccessRate()})
}

// ms is d in milliseconds, to the microsecond.
func ms(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Microsecond)) / 1000
}
