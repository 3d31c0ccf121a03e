package controller

import (
	"fmt"
	"net/netip"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"
)

// BenchmarkSet changes one endpoint of a destination. It measures the validation of the
// whole state, the difference, and the messages to a hundred streams.
var webTarget, _ = parseTarget(web)

func BenchmarkSet(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			var eps []Endpoint
			for i := range n {
				ip := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
				eps = append(eps, Endpoint{Addr: netip.AddrPortFrom(ip, 80), Labels: map[string]string{"pod": fmt.Sprint(i)}})
			}
			states := [2]Config{one(web, Destination{Endpoints: eps}), one(web, Destination{Endpoints: eps[1:]})}
			c := New(nil)
			require.NoError(b, c.Set(states[1]))
			for range 100 {
				s := follow(c, c.updates, webTarget, func() *pb.Update { return c.entries[web].snapshot() })
				<-s.queue
				defer leave(c, c.updates, webTarget, s)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := c.Set(states[i%2]); err != nil {
					b.Fatal(err)
				}
				for s := range c.updates[webTarget] {
					<-s.queue
				}
			}
		})
	}
}
