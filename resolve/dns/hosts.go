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

// maxHostsFile is the size limit of the file in bytes, far above that of published block lists.
const maxHostsFile = 64 << 20

// hostsFile is the file of hosts(5). A lookup of a name in it asks no server. A file
// that cannot be read has no names.
type hostsFile struct {
	mu   sync.Mutex
	file follow.File[map[string][]netip.Addr]
}

func newHostsFile(path string) *hostsFile {
	if path == "" {
		path = "/etc/hosts"
		if runtime.GOOS == "windows" {
			path = filepath.Join(os.Getenv("SystemRoot"), "System32", "drivers", "etc", "hosts") //nolint:forbidigo // where Windows is
		}
	}
	return &hostsFile{file: follow.File[map[string][]netip.Addr]{Path: path, Max: maxHostsFile, Parse: parseHosts}}
}

// lookup returns the addresses of a host, or nil if a server must be asked. host is in
// lower case without a final dot. The file is read again if it has changed. localhost
// and names that end in .localhost have the loopback addresses, unless the file has
// others (RFC 6761, section 6.3).
func (f *hostsFile) lookup(host string) *hosts {
	f.mu.Lock()
	defer f.mu.Unlock()
	addrs, ok := f.file.Look().Latest.Value[host]
	if !ok && isLocalhost(host) {
		addrs, ok = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, true
	}
	if !ok {
		return nil
	}
	return &hosts{exists: true, addrs: slices.Clone(addrs)} // with the TTL 0, so that the file is read again soon
}

func isLocalhost(host string) bool {
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// parseHosts returns the addresses of each name. A line has an address and its names.
// As in Go's resolver, lines that do not start with an address are ignored. A name with
// the unspecified address, which block lists use, has no addresses.
func parseHosts(_ string, data []byte) (map[string][]netip.Addr, error) {
	byName := make(map[string][]netip.Addr)
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		addr, err := netip.ParseAddr(fields[0])
		if err != nil {
			continue
		}
		addr = addr.Unmap()
		for _, name := range fields[1:] {
			name = strings.TrimSuffix(strings.ToLower(name), ".")
			addrs := byName[name]
			if !addr.WithZone("").IsUnspecified() {
				addrs = append(addrs, addr)
			}
			byName[name] = addrs
		}
	}
	return byName, nil
}
