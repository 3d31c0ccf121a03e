package sidecar_test

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/tap/tappb"
)

// BenchmarkTap is what watchers cost the requests of a whole proxy: eight
// clients as fast as they can, and nobody who watches; ten as tapctl makes them,
// who see a hundred requests a second together; and ten who want every event,
// which is as much work as the requests are. The last of ten never reads.
func BenchmarkTap(b *testing.B) {
	for _, bb := range []struct {
		name          string
		watchers, rps int
	}{{"watchers=0", 0, 0}, {"watchers=10", 10, 10}, {"watchers=10/each_event", 10, 0}} {
		b.Run(bb.name, func(b *testing.B) {
			ctl, _ := serveController(b, "127.0.0.1:0", at(webName, backend(b, "a"), backend(b, "b"), backend(b, "c")))
			tn := newTown(b, ctl)
			for i := range bb.watchers {
				watchAll(b, tn.Tap, uint32(bb.rps), i < bb.watchers-1)
			}
			tn.load(b, 8, 1000) // connections are made, and the balancer knows its endpoints
			b.ResetTimer()
			took := tn.load(b, 8, b.N)
			b.StopTimer()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/float64(time.Microsecond), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100])/float64(time.Microsecond), "p99-µs")
		})
	}
}

// watchAll watches all requests until the benchmark ends.
func watchAll(b *testing.B, addr string, rps uint32, reads bool) {
	b.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	if !reads {
		rps = 0
	}
	stream, err := tappb.NewTapClient(conn).Watch(b.Context(), &tappb.WatchRequest{MaxRps: rps})
	require.NoError(b, err)
	_, err = stream.Header()
	require.NoError(b, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for reads {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	b.Cleanup(func() {
		conn.Close()
		<-done
	})
}

// load sends n requests from some clients, and returns how long each took.
func (tn *town) load(b *testing.B, clients, n int) []time.Duration {
	b.Helper()
	took := make([]time.Duration, n)
	var wg sync.WaitGroup
	for i := range clients {
		c := tn.client(b)
		wg.Go(func() {
			for j := i; j < n; j += clients {
				start := time.Now()
				rsp, err := c.Get("http://" + webName + "/")
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, rsp.Body)
				rsp.Body.Close()
				took[j] = time.Since(start)
				if rsp.StatusCode != http.StatusOK {
					b.Error(rsp.Status)
					return
				}
			}
		})
	}
	wg.Wait()
	return took
}
