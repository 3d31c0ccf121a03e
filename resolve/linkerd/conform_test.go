package linkerd

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
)

// The resolver, over a real connection to a real gRPC server.
func TestConforms(t *testing.T) {
	resolvetest.Run(t, resolvetest.Subject{
		New: func(t testing.TB) (resolve.Resolver, resolvetest.Source) {
			c := &controller{}
			r := New(loopback(t, c.get), WithBackoff(resolve.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}))
			return r, resolvetest.Source{
				Set:          c.set,
				Empty:        func(name string) { c.tell(name, resolve.Update{Kind: resolve.Empty}) },
				DoesNotExist: func(name string) { c.tell(name, resolve.Update{Kind: resolve.DoesNotExist}) },
				Send:         func(name string, u resolve.Update) { c.tell(name, u) },
				Interrupt:    c.interrupt,
				Reject:       c.reject,
			}
		},
		Endpoint: func(n int) resolve.Endpoint {
			e := resolve.Endpoint{
				ID: resolve.ID{
					Addr:     netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:80", n)),
					Protocol: resolve.H2, Identity: "web.ns", ServerName: "sni", Authority: "web.ns:80", OpaquePort: 4143,
				},
				Weight: 10_000, Labels: map[string]string{"pod": fmt.Sprint(n)},
			}
			if n%2 == 1 {
				e.Addr = netip.MustParseAddrPort(fmt.Sprintf("[fd00::%d]:80", n))
			}
			return e
		},
		Relabel: func(e resolve.Endpoint) resolve.Endpoint {
			e.Labels = map[string]string{"pod": "other"}
			return e
		},
		Rekey: func(e resolve.Endpoint) resolve.Endpoint {
			e.Protocol = resolve.Unknown
			return e
		},
	})
}
