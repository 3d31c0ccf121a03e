package identity

import (
	"context"
	"crypto/tls"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Both ends are given new certificates again and again, and no handshake fails.
func TestRotationHandshakes(t *testing.T) {
	rotations, handshakes := 8.0, int64(150)
	if os.Getenv("GOTOWER_TESTS") == "full" {
		rotations, handshakes = 20, 500
	}
	a := newAuthority(t)
	var renewed [2]number
	ends := make([]*Identity, 2)
	for n, name := range []string{web, other} {
		conn, stop := serveCA(t, func(_ context.Context, req *pb.CertifyRequest) (*pb.CertifyResponse, error) {
			return a.answer(req, time.Hour), nil
		})
		defer stop()
		c := a.config(name)
		c.MinRefresh, c.MaxRefresh = 5*time.Millisecond, 5*time.Millisecond
		c.Instruments.Refreshes = asCounter{&renewed[n]}
		var err error
		ends[n], err = New(c)
		require.NoError(t, err)
		end := certifying(t, ends[n], conn)
		defer end()
		require.NoError(t, ends[n].Ready(t.Context()))
	}
	addr := served(t, ends[0].Server(), web)
	cfg := ends[1].Client("", web)
	held, err := tls.Dial("tcp", addr, cfg) // from before all of it
	require.NoError(t, err)
	defer held.Close()

	var done atomic.Int64
	enough := func() bool {
		return done.Load() >= handshakes && renewed[0].value() >= rotations && renewed[1].value() >= rotations
	}
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for !enough() && !t.Failed() {
				got, err := sendText(t, addr, cfg, "hello")
				assert.NoError(t, err)
				assert.Equal(t, other+" says hello ", got)
				done.Add(1)
			}
		})
	}
	clients.Wait()
	io.WriteString(held, "still here")
	require.NoError(t, held.CloseWrite())
	got, err := io.ReadAll(held)
	require.NoError(t, err)
	assert.Equal(t, other+" says still here ", string(got))
	t.Logf("%d handshakes, none failed, during %.0f and %.0f renewals", done.Load(), renewed[0].value(), renewed[1].value())
}
