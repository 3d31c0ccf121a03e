package redirect

import (
	"fmt"
	"strconv"
	"strings"
)

// Ports converts entries such as "80" and "4567-4568" to iptables syntax: "80" and "4567:4568".
// bad contains an error for each invalid entry. Invalid entries are left out, as in linkerd's
// proxy-init. A range of one port becomes that port.
func Ports(entries []string) (ports []string, bad []error) {
	for _, entry := range entries {
		// A single port is a range of one.
		low, high, isRange := strings.Cut(strings.TrimSpace(entry), "-")
		if !isRange {
			high = low
		}
		from, err := port(low)
		to, err2 := port(high)
		// The order matters: only a valid entry is converted.
		switch {
		case err != nil || err2 != nil || from > to:
			bad = append(bad, fmt.Errorf("%q must be a port or a range of ports", entry))
		case from == to:
			ports = append(ports, strconv.Itoa(from))
		default:
			ports = append(ports, strconv.Itoa(from)+":"+strconv.Itoa(to))
		}
	}
	return ports, bad
}

// port parses a port from 0 to 65535.
func port(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err
}

// maxPorts is how many ports fit into one iptables multiport match. A range counts as two.
const maxPorts = 15

// chunks divides ports, which are in iptables syntax, into comma-separated lists of at most
// maxPorts ports.
func chunks(ports []string) (lists []string) {
	// from is the index of the first port in the current list, and n how many ports that list contains.
	from, n := 0, 0
	for i, p := range ports {
		// iptables counts a range as two ports.
		size := 1 + strings.Count(p, ":")
		if n+size > maxPorts {
			lists = append(lists, strings.Join(ports[from:i], ","))
			from, n = i, 0
		}
		n += size
	}
	if n > 0 {
		lists = append(lists, strings.Join(ports[from:], ","))
	}
	return lists
}
