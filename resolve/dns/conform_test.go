package dns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
)

// quick asks again at once.
func quick(at netip.AddrPort, more ...Option) *Resolver {
	return New(append([]Option{
		WithServers(at), WithRefresh(time.Millisecond, time.Millisecond),
		WithBackoff(resolve.Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond}),
	}, more...)...)
}

// source scripts a real server. lines returns the zone with the endpoints.
func source(s *server, lines func(name string, n int, e resolve.Endpoint) []string) resolvetest.Source {
	name := func(target string) string { return strings.TrimSuffix(target, ":80") + "." }
	return resolvetest.Source{
		Set: func(target string, endpoints ...resolve.Endpoint) {
			var all []string
			for n, e := range endpoints {
				all = append(all, lines(name(target), n, e)...)
			}
			s.put(target, all...)
		},
		Empty:        func(target string) { s.put(target, name(target)+" 1 TXT x") },
		DoesNotExist: func(target string) { s.put(target) },
		Interrupt: func(target string, meanwhile func()) {
			s.fail(func(_ string, q dnsmessage.Question) *reply {
				if fold(q.Name) != name(target) {
					return nil
				}
				return &reply{rcode: dnsmessage.RCodeServerFailure}
			})
			meanwhile()
			s.fail(nil)
		},
	}
}

func TestConforms(t *testing.T) {
	resolvetest.Run(t, resolvetest.Subject{
		New: func(t testing.TB) (resolve.Resolver, resolvetest.Source) {
			s := &server{}
			return quick(s.loopback(t)), source(s, func(name string, _ int, e resolve.Endpoint) []string {
				return []string{name + " 1 A " + e.Addr.Addr().String()}
			})
		},
	})
}

// With SRV records, each family in some endpoints, and the port in each.
func TestConformsWithServices(t *testing.T) {
	for _, additional := range []bool{true, false} {
		t.Run(fmt.Sprintf("additional %v", additional), func(t *testing.T) {
			resolvetest.Run(t, resolvetest.Subject{
				Targets: [2]string{"_http._tcp.web.test", "_http._tcp.books.test"},
				New: func(t testing.TB) (resolve.Resolver, resolvetest.Source) {
					s := &server{additional: additional}
					for n := range 10 {
						e := serviceEndpoint(n)
						s.put(fmt.Sprint(n), fmt.Sprintf("n%d.test. 1 %s %s", n, family(e), e.Addr.Addr()))
					}
					return quick(s.loopback(t)), source(s, func(name string, _ int, e resolve.Endpoint) []string {
						return []string{fmt.Sprintf("%s 1 SRV 0 7 %d n%d.test.", name, e.Addr.Port(), e.Addr.Port()-8000)}
					})
				},
				Endpoint: serviceEndpoint,
			})
		})
	}
}

func serviceEndpoint(n int) resolve.Endpoint {
	addr := fmt.Sprintf("10.0.0.%d:%d", n, 8000+n)
	if n%2 == 1 {
		addr = fmt.Sprintf("[fd00::%d]:%d", n, 8000+n)
	}
	return resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort(addr)}, Weight: 10_000}
}

func family(e resolve.Endpoint) string {
	if e.Addr.Addr().Is4() {
		return "A"
	}
	return "AAAA"
}
