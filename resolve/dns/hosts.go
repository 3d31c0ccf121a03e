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

// maxHostsFile is the size limit of the hosts file in bytes. It is far above the size of
// published block lists.
const maxHostsFile = 64 << 20

// hostsFile is the file of hosts(5). A name that is in the file is not looked up at a
// server. A file that cannot be read counts as empty.
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

// lookup returns the addresses that the file has for a host. It returns nil if the file
// does not have the host. Then a server must be asked. host is in lower case without a
// final dot. The file is read again if it has changed. localhost and names that end in
// .localhost have the loopback addresses, unless the file has other addresses for them (RFC
// 6761, section 6.3).
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

// parseHosts returns the addresses of each name in data, the content of a hosts file. A
// line has an address and its names. As in Go's resolver, lines that do not start with an
// address are ignored. A name with the unspecified address has no addresses in the result,
// because block lists use it for blocked names.
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
