package redirect

import (
	"fmt"
	"strconv"
	"strings"
)

// Ports returns the entries of a list of ports and ranges as iptables writes
// them ("4567:4568"), and an error for each that cannot be read; those are left
// out, as linkerd's proxy-init does. A range of one port is that port.
func Ports(entries []string) (ports []string, bad []error) {
	for _, entry := range entries {
		low, high, isRange := strings.Cut(strings.TrimSpace(entry), "-")
		if !isRange {
			high = low
		}
		from, err := port(low)
		to, err2 := port(high)
		switch {
		case err != nil || err2 != nil || from > to:
			bad = append(bad, fmt.Errorf("%q is neither a port nor a range of ports", entry))
		case from == to:
			ports = append(ports, strconv.Itoa(from))
		default:
			ports = append(ports, strconv.Itoa(from)+":"+strconv.Itoa(to))
		}
	}
	return ports, bad
}

func port(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err
}

// mostPorts is how many ports a match of multiport may have. A range counts as
// two.
const mostPorts = 15

// chunks divides ports among matches, each a list with commas.
func chunks(ports []string) (lists []string) {
	from, n := 0, 0
	for i, p := range ports {
		size := 1 + strings.Count(p, ":")
		if n+size > mostPorts {
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
