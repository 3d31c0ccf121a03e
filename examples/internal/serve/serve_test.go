package serve_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/http2" //nolint:depguard // its Framer: net/http exports none
	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/internal/serve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const free = "127.0.0.1:0"

var silent = slog.New(slog.DiscardHandler)

func TestRunContextEnd(t *testing.T) {
	var g serve.Group
	addr := g.HTTP("web", free, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") }))
	asked := false
	g.GRPC("rpc", free, func(*grpc.Server) {}, func() { asked = true })
	require.NoError(t, g.Err())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx, time.Minute, silent) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	rsp, err := client.Get("http://" + addr)
	require.NoError(t, err)
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Equal(t, "hi", string(body))
	cancel()
	require.NoError(t, <-done)
	require.True(t, asked, "streams are asked to end")
}

func TestRunCutsOpenRequests(t *testing.T) {
	var g serve.Group
	entered, left := make(chan struct{}), make(chan struct{})
	addr := g.HTTP("web", free, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		close(left)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx, time.Millisecond, silent) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer := make(chan error, 1)
	go func() {
		rsp, err := client.Get("http://" + addr)
		if err == nil {
			rsp.Body.Close()
		}
		answer <- err
	}()
	<-entered
	cancel()
	require.ErrorContains(t, <-done, "web: requests were still open after 1ms")
	<-left
	require.Error(t, <-answer)
}

// A connection of HTTP/2 has at most the advertised number of streams.
func TestMaxStreams(t *testing.T) {
	var g serve.Group
	addr := g.HTTP("web", free, http.NotFoundHandler())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx, time.Minute, silent) }()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	framer := http2.NewFramer(conn, conn)
	require.NoError(t, framer.WriteSettings())
	frame, err := framer.ReadFrame()
	require.NoError(t, err)
	settings, ok := frame.(*http2.SettingsFrame)
	require.True(t, ok)
	most, _ := settings.Value(http2.SettingMaxConcurrentStreams)
	require.EqualValues(t, 100, most)
	require.NoError(t, conn.Close())
	cancel()
	require.NoError(t, <-done)
}

func TestTakenAddresses(t *testing.T) {
	l, err := net.Listen("tcp", free)
	require.NoError(t, err)
	defer l.Close()
	taken := l.Addr().String()

	var g serve.Group
	require.NotEqual(t, taken, g.HTTP("web", taken, http.NotFoundHandler(), free), "there is a fallback")
	require.NoError(t, g.Err())
	require.Empty(t, g.GRPC("rpc", taken, func(*grpc.Server) {}, nil))
	require.ErrorContains(t, g.Err(), "rpc: ")
	require.ErrorContains(t, g.Run(t.Context(), time.Second, silent), "in use", "and nothing serves")
}

// A program that is to end before it began has not failed, and holds nothing.
func TestRunWithoutGrace(t *testing.T) {
	const own = "127.0.0.92:0" // no other test uses ports of this address
	for range 20 {             // the order is random
		var g serve.Group
		addrs := []string{
			g.HTTP("web", own, http.NotFoundHandler()),
			g.GRPC("rpc", own, func(*grpc.Server) {}, nil),
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, g.Run(ctx, time.Minute, silent))
		for _, addr := range addrs {
			l, err := net.Listen("tcp", addr)
			require.NoError(t, err)
			require.NoError(t, l.Close())
		}
	}
}
