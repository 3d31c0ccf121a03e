package httplayer

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/h1"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// piped gives one end of a pipe to s, in a bubble.
func piped(ctx context.Context, s *Server) (client net.Conn, done <-chan error) {
	conn, client := net.Pipe()
	over := make(chan error, 1)
	go func() {
		_, err := s.Call(ctx, conn)
		over <- err
	}()
	return client, over
}

// A drain waits for connections without a first byte no longer than for idle connections.
func TestServerDrainSilentClients(t *testing.T) {
	for name, tt := range map[string]struct {
		opts []ServerOption
		wait time.Duration
	}{
		"default":                {nil, time.Second},
		"no header timeout":      {[]ServerOption{WithHeaderTimeout(0)}, time.Second},
		"shorter header timeout": {[]ServerOption{WithHeaderTimeout(500 * time.Millisecond)}, 500 * time.Millisecond},
		"no patience":            {[]ServerOption{WithDrainTimeout(0)}, h1.LeastDrain},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				s := NewServer(http.HandlerFunc(shapes), tt.opts...)
				before, over := piped(ctx, s)
				defer before.Close()
				synctest.Wait()
				began := time.Now()
				require.NoError(t, s.Drain(ctx))
				assert.InDelta(t, tt.wait, time.Since(began), float64(2*sweep.Interval))
				require.ErrorIs(t, <-over, layer.ErrTimeout)

				after, over := piped(ctx, s)
				defer after.Close()
				began = time.Now()
				require.ErrorIs(t, <-over, layer.ErrTimeout)
				assert.InDelta(t, tt.wait, time.Since(began), float64(2*sweep.Interval))
			})
		})
	}
}

// A drain does not shorten the header timeout of a request that has begun.
func TestServerDrainWaitsForStartedRequest(t *testing.T) {
	for name, early := range map[string]bool{"before the drain": true, "after it": false} {
		for _, first := range []string{"P", "G", "PRI * HTTP/2."} {
			t.Run(name+" "+first, func(t *testing.T) {
				bubble(t, func(t *testing.T, ctx context.Context) {
					s := NewServer(http.HandlerFunc(shapes))
					client, over := piped(ctx, s)
					defer client.Close()
					if early {
						say(client, first)
					}
					synctest.Wait()
					s.drain()
					if !early {
						time.Sleep(s.DrainTimeout - time.Millisecond)
						say(client, first)
					}
					time.Sleep(s.HeaderTimeout - time.Millisecond)
					synctest.Wait()
					require.Empty(t, over)
					switch first {
					case "P":
						say(client, "OST /length HTTP/1.1\r\nHost: a\r\n\r\n")
					case "G":
						say(client, "ET /length HTTP/1.1\r\nHost: a\r\n\r\n")
					default: // HTTP/2 has a preface, and then its SETTINGS
						go pipe(io.Discard, client)
						say(client, h2Preface[len(first):]+"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
						require.NoError(t, <-over)
						return
					}
					rsp, err := http.ReadResponse(bufio.NewReader(client), nil)
					require.NoError(t, err)
					assert.Equal(t, "hello", read(t, rsp))
					assert.True(t, rsp.Close)
					require.NoError(t, <-over)
				})
			})
		}
	}
}
