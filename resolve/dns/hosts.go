package dns

import (
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/gotower/gotower/internal/follow"
)

// maxHostsFile is the size limit for the hosts file in bytes, far above published block lists.
const maxHostsFile = 64 << 20

// hostsFile is the file of hosts(5). A name that is in the file is not looked up at a
// server. A file that cannot be read counts as empty.
type hostsFile struct {
	mu   sync.Mutex
	file follow.File[map[string][]netip.Addr]
}

// newHostsFile returns the hosts file at path, or at its usual place in this operating system if path
// is "". It reads nothing yet.
func newHostsFile(path string) *hostsFile {
	if path == "" {
		path = "/etc/hosts"
		if runtime.GOOS == "windows" {
			path = filepath.Join(os.Getenv("SystemRoot"), "System32", "drivers", "etc", "hosts") //nolint:forbidigo // where Windows is
		}
	}
	return &hostsFile{file: follow.File[map[string][]netip.Addr]{Path: path, Max: maxHostsFile, Parse: parseHosts}}
}

// lookup returns the addresses for t's host in the file, or nil if the file does not list the
// host, so that a server must be asked. The file is read again if it has changed. localhost and
// names that end in .localhost are the loopback addresses, unless the file says otherwise (RFC
// 6761, section 6.3).
func (f *hostsFile) lookup(t target) *hosts {
	f.mu.Lock()
	defer f.mu.Unlock()
	// The keys are those of hostsKey: a final dot matters for a single label.
	key := t.host
	if t.complete {
		key = hostsKey(t.host + ".")
	}
	addrs, ok := f.file.Look().Latest.Value[key]
	// RFC 6761: these names never go to a server, so they need an address here.
	if !ok && isLocalhost(t.host) {
		addrs, ok = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, true
	}
	if !ok {
		return nil
	}
	return &hosts{exists: true, addrs: slices.Clone(addrs)} // with the TTL 0, so that the file is read again soon
}

// isLocalhost reports whether host, in lower case, is localhost or ends in .localhost. Such names must
// never be asked for at a server.
func isLocalhost(host string) bool {
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// hostsKey returns the form in which a name is compared with other names. As in Go's resolver, the
// final dot matters only for a single label: "web." is never the local name "web".
func hostsKey(name string) string {
	name = strings.ToLower(toASCII(name))
	if short := strings.TrimSuffix(name, "."); strings.Contains(short, ".") {
		return short
	}
	return name
}

// parseHosts returns the addresses for each name in data, a hosts file. A line consists of an
// address and its names. As in Go's resolver, lines that do not start with an address are
// ignored. For a name with the unspecified address, the result contains no addresses, because
// block lists use it for blocked names.
func parseHosts(_ string, data []byte) (map[string][]netip.Addr, error) {
	byName := make(map[string][]netip.Addr)
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		// A name without an address, or the reverse, means nothing.
		if len(fields) < 2 {
			continue
		}
		addr, err := netip.ParseAddr(fields[0])
		if err != nil {
			continue
		}
		addr = addr.Unmap()
		for _, name := range fields[1:] {
			name = hostsKey(name)
			// A blocked name is in the map without an address, so that no server is asked for it.
			addrs := byName[name]
			if !addr.WithZone("").IsUnspecified() {
				addrs = append(addrs, addr)
			}
			byName[name] = addrs
		}
	}
	return byName, nil
}
