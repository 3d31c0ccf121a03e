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

// maxHostsFile is far above the size of published block lists, in bytes.
const maxHostsFile = 64 << 20

// hostsFile is the file of hosts(5). Lookups that find a name there ask no
// server. A file that cannot be read has no names.
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

// lookup returns the addresses of a host in lower case without a dot at its end,
// or nil if a server is to be asked for them. The file is read again if it has
// changed. localhost and names below it are the loopback addresses, unless the
// file has others (RFC 6761, section 6.3).
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
	return &hosts{exists: true, addrs: slices.Clone(addrs)} // a ttl of 0: read the file again after the least pause
}

func isLocalhost(host string) bool {
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// parseHosts reads lines of an address and its names. As in Go's resolver, lines
// that do not begin with an address are skipped. An unspecified address, with
// which block lists block a name, leaves the name without an address.
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
