package file

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
)

// script is a file that the suite changes. While it is down there is something
// in the file that is not YAML.
type script struct {
	t    testing.TB
	path string

	mu      sync.Mutex
	targets map[string][]resolve.Endpoint
	down    bool
}

func (s *script) change(how func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how()
	content := "destinations: {"
	if !s.down {
		content = string(render(s.t, s.targets))
	}
	replace(s.t, s.path, content)
}

func (s *script) set(target string, endpoints ...resolve.Endpoint) {
	// The suite sets an endpoint twice and expects one; in a file that is a mistake.
	unique := map[netip.AddrPort]bool{}
	var list []resolve.Endpoint
	for _, e := range endpoints {
		if !unique[e.Addr] {
			list = append(list, e)
		}
		unique[e.Addr] = true
	}
	s.change(func() { s.targets[target] = list })
}

func (s *script) interrupt(_ string, meanwhile func()) {
	s.change(func() { s.down = true })
	meanwhile()
	s.change(func() { s.down = false })
}

func TestConforms(t *testing.T) {
	resolvetest.Run(t, resolvetest.Subject{
		New: func(t testing.TB) (resolve.Resolver, resolvetest.Source) {
			s := &script{t: t, path: filepath.Join(t.TempDir(), "targets"), targets: map[string][]resolve.Endpoint{}}
			s.change(func() {})
			return newResolver(s.path, time.Millisecond), resolvetest.Source{
				Set:          s.set,
				Empty:        func(target string) { s.set(target) },
				DoesNotExist: func(target string) { s.change(func() { delete(s.targets, target) }) },
				Interrupt:    s.interrupt,
			}
		},
		Endpoint: func(n int) resolve.Endpoint {
			e := resolve.Endpoint{
				ID: resolve.ID{
					Addr:     netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:80", n)),
					Protocol: resolve.H2, Identity: "web.ns", ServerName: "sni", Authority: "web.ns:80", OpaquePort: 4143,
				},
				Weight: uint32(n), Labels: map[string]string{"pod": fmt.Sprint(n)},
			}
			if n%2 == 1 {
				e.Addr = netip.MustParseAddrPort(fmt.Sprintf("[fd00::%d]:80", n))
			}
			return e
		},
		Relabel: func(e resolve.Endpoint) resolve.Endpoint {
			e.Labels, e.Weight = map[string]string{"pod": "other"}, 99
			return e
		},
		Rekey: func(e resolve.Endpoint) resolve.Endpoint {
			e.OpaquePort = 0
			return e
		},
	})
}
