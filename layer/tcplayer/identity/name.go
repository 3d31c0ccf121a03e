package identity

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/caller"
)

// has reports whether name is one of names.
func has(names []string, name string) bool {
	return name != "" && slices.ContainsFunc(names, func(n string) bool { return same(n, name) })
}

func same(a, b string) bool {
	return a == b || !caller.IsURI(a) && !caller.IsURI(b) && strings.EqualFold(a, b)
}

// list is names for people. A stranger chose them, and how many there are.
func list(names []string) string {
	const most = 4
	switch more := len(names) - most; {
	case len(names) == 0:
		return "nobody"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
