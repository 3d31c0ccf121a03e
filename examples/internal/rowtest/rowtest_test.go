package rowtest_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/internal/rowtest"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
)

// A Server of the library with an access log, a tap of the responses, compression and a timeout.
func TestServer(t *testing.T) {
	rowtest.Run(t, func(t *testing.T, one, two string) rowtest.Proxy {
		log := new(lines)
		serve := func(upstream string, opts ...httplayer.EndpointOption) string {
			ctx, cancel := context.WithCancel(context.Background())
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			svc := httplayer.NewStack().
				With("compress", httplayer.Compress(httplayer.CompressPolicy{})).
				With("forwarded", httplayer.Forwarded()).
				Limit(100).
				Service(httplayer.NewEndpoint(ctx, upstream, opts...))
			server := httplayer.NewServer(svc, httplayer.WithConnect(), httplayer.WithDrainOnDone(ctx), httplayer.WithLogger(nil),
				httplayer.WithAccessLog(log, httplayer.JSONLog, nil),
				httplayer.WithObserver(tap.Layer(tap.NewRegistry(), httplayer.HTTP{}, tap.Inbound)))
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = tcplayer.Serve(ctx, l, server, tcplayer.WithShutdownTimeout(0))
			}()
			t.Cleanup(func() { cancel(); <-done })
			return l.Addr().String()
		}
		return rowtest.Proxy{HTTP1: serve(one), HTTP2: serve(two, httplayer.WithHTTP2()), Connect: true, Log: log.String}
	})
}

// lines is a text that goroutines write.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
