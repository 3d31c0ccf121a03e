package sidecar_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkPages measures what open pages cost requests through a whole proxy with eight clients.
// 0, 1 or 5 pages are being read.
func BenchmarkPages(b *testing.B) {
	for _, pages := range []int{0, 1, 5} {
		b.Run(fmt.Sprint(pages), func(b *testing.B) {
			ctl, _ := serveController(b, "127.0.0.1:0", at(webName, backend(b, "a"), backend(b, "b"), backend(b, "c")))
			tn := newTestProxy(b, ctl)
			for range pages {
				openStream(b, "http://"+tn.Admin+"/view/live")
				openStream(b, "http://"+tn.Admin+"/view/tap")
			}
			tn.load(b, 8, 1000) // makes connections, and tells the balancer about its endpoints
			b.ResetTimer()
			took := tn.load(b, 8, b.N)
			b.StopTimer()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/float64(time.Microsecond), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100])/float64(time.Microsecond), "p99-µs")
		})
	}
}

// openStream reads a page's stream until the benchmark ends.
func openStream(b *testing.B, url string) {
	b.Helper()
	rsp, err := new(http.Client).Get(url)
	require.NoError(b, err)
	text := bufio.NewReader(rsp.Body)
	_, err = text.ReadString('\n')
	require.NoError(b, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, text)
	}()
	b.Cleanup(func() {
		rsp.Body.Close()
		<-done
	})
}
