// Plainterms counts wording that CONTRIBUTING.md rules out, in comments,
// messages and Markdown pages, and compares the counts with a file of limits.
//
//	plainterms DIR              fails if a count is above its limit
//	plainterms -lower DIR       writes counts that are below their limits
//	plainterms -list NAME DIR   prints each place of one count
//
// Limits only go down: -lower never raises one. Generated files, testdata and
// CHANGELOG.md are not read. Of test files it reads the comments without the
// output of examples.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

func main() {
	lower := flag.Bool("lower", false, "write counts that are below their limits")
	list := flag.String("list", "", "print the places of the count with this `name`")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: plainterms [-lower] [-list NAME] DIR")
		os.Exit(2)
	}
	ok, err := run(flag.Arg(0), *lower, *list)
	if err != nil {
		fmt.Fprintln(os.Stderr, "plainterms:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(dir string, lower bool, list string) (ok bool, err error) {
	texts, err := read(dir)
	if err != nil {
		return false, err
	}
	counts := count(texts)
	if list != "" {
		for _, place := range counts[list].places {
			fmt.Println(place)
		}
		return true, nil
	}
	limits, err := readLimits(dir)
	if err != nil {
		return false, err
	}
	ok = true
	for _, name := range names() {
		n, limit := len(counts[name].places), limits[name]
		fmt.Printf("%-16s %5d, limit %d\n", name, n, limit)
		switch {
		case n > limit:
			ok = false
			fmt.Printf("  too many: plainterms -list %s %s prints the places\n", name, dir)
		case n < limit && lower:
			limits[name] = n
		}
	}
	if lower {
		return ok, writeLimits(dir, limits)
	}
	return ok, nil
}

// limitsFile is the path of the file with the limits of the counts, relative to the root of
// the repository. The file is committed, so that a review shows every changed limit.
const limitsFile = "/tools/plainterms/limits.txt"

func readLimits(dir string) (map[string]int, error) {
	b, err := os.ReadFile(dir + limitsFile)
	if err != nil {
		return nil, err
	}
	limits := make(map[string]int)
	for line := range strings.Lines(string(b)) {
		var name string
		var n int
		if _, err := fmt.Sscanf(line, "%s %d", &name, &n); err != nil {
			return nil, fmt.Errorf("%s: %q: want a name and a number", limitsFile, strings.TrimSpace(line))
		}
		if !slices.Contains(names(), name) {
			return nil, fmt.Errorf("%s: unknown count %q, want one of %s", limitsFile, name, strings.Join(names(), ", "))
		}
		limits[name] = n
	}
	return limits, nil
}

func writeLimits(dir string, limits map[string]int) error {
	var b strings.Builder
	for _, name := range names() {
		fmt.Fprintf(&b, "%s %d\n", name, limits[name])
	}
	return os.WriteFile(dir+limitsFile, []byte(b.String()), 0o600)
}
