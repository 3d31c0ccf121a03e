package tcplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// named is a Server that writes its name and the bytes that it reads.
func named(name string) Server {
	return serverFunc(func(_ context.Context, conn net.Conn) (ByteCount, error) {
		defer conn.Close()
		_, _ = io.WriteString(conn, name+": ")
		n, err := io.Copy(conn, conn)
		return ByteCount{Sent: n}, err
	})
}

func all3() Protocols {
	return Protocols{HTTP1: named("one"), HTTP2: named("two"), Opaque: named("opaque")}
}

// rejecting is a Server that rejects.
func rejecting() Server {
	return serverFunc(func(context.Context, net.Conn) (ByteCount, error) {
		return ByteCount{}, &layer.Error{Layer: "limit", Kind: layer.ErrNotReady, Reason: "full"}
	})
}

func TestDetect(t *testing.T) {
	ways(t, func(t *testing.T, pair func() (*net.TCPConn, net.Conn)) {
		for said, want := range map[string]string{
			"GET / HTTP/1.1\r\n\r\n":       "one",
			preface + "\r\n\r\nSM\r\n\r\n": "two",
			"GET":                          "opaque",
			strings.Repeat("\x00", 5000):   "opaque",
			"GET /" + strings.Repeat("a", 64<<10) + " HTTP/1.1\r\n\r\n": "one",
		} {
			client, accepted := pair()
			done := make(chan error, 1)
			go func() {
				_, err := Detect(all3()).Call(t.Context(), accepted)
				done <- err
			}()
			go func() {
				io.WriteString(client, said)
				client.CloseWrite()
			}()
			got, err := io.ReadAll(client)
			require.NoError(t, err)
			assert.Equal(t, want+": "+said, string(got))
			require.NoError(t, <-done)
		}
	})
}

// A request line in pieces is HTTP, even if the first piece is short.
func TestDetectRequestLineInPieces(t *testing.T) {
	for _, pieces := range [][]string{
		{"G", "ET / HTTP/1.1\r\n"}, {"GET ", "/ HTTP/1.1\r\n"}, {"GET  /", " HTTP/1.1\r\n"}, {"GET / HTTP/1.", "9\r\n"},
		{"\r\n", "GET / HTTP/1.1 \r\n"}, {"GET\t", "/", "\tHTTP/1.1\r\n"}, {"GET  /" + strings.Repeat("a", 2000), " HTTP/1.1\r\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, accepted := net.Pipe()
			done := make(chan error)
			go func() {
				_, err := Detect(all3()).Call(t.Context(), accepted)
				done <- err
			}()
			go func() {
				for _, piece := range pieces {
					io.WriteString(client, piece)
					synctest.Wait()
				}
			}()
			got := make([]byte, len("one"))
			_, err := io.ReadFull(client, got)
			require.NoError(t, err)
			assert.Equal(t, "one", string(got), "%q", pieces)
			client.Close()
			<-done
		})
	}
}

// A TCP connection is passed to the server without a wrapper.
func TestDetectUnwrapped(t *testing.T) {
	client, accepted := conntest.Pair(t)
	io.WriteString(client, "GET / HTTP/1.1\r\n\r\n")
	var got net.Conn
	keep := serverFunc(func(_ context.Context, conn net.Conn) (ByteCount, error) { got = conn; return ByteCount{Sent: 1}, nil })
	traffic, err := Detect(Protocols{Opaque: keep}).Call(t.Context(), accepted)
	require.NoError(t, err)
	assert.Equal(t, ByteCount{Sent: 1}, traffic)
	assert.Same(t, accepted, got)
	_, err = io.ReadFull(got, make([]byte, 18))
	require.NoError(t, err)
}

func TestDetectSilence(t *testing.T) {
	for name, tt := range map[string]struct {
		opts []DetectOption
		want string
		wait time.Duration
	}{
		"default":     {nil, "opaque: ", 10 * time.Second},
		"set":         {[]DetectOption{WithDetectTimeout(time.Second)}, "opaque: ", time.Second},
		"not set":     {[]DetectOption{WithDetectTimeout(-1), WithSkipDetect(nil)}, "opaque: ", 10 * time.Second},
		"skipped":     {[]DetectOption{WithSkipDetect(func(context.Context, net.Conn) bool { return true })}, "opaque: ", 0},
		"not skipped": {[]DetectOption{WithSkipDetect(func(context.Context, net.Conn) bool { return false })}, "opaque: ", 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, accepted := net.Pipe()
				done := make(chan error)
				go func() {
					_, err := Detect(all3(), tt.opts...).Call(t.Context(), accepted)
					done <- err
				}()
				start := time.Now()
				got := make([]byte, len(tt.want))
				_, err := io.ReadFull(client, got)
				require.NoError(t, err)
				assert.Equal(t, tt.want, string(got))
				assert.Equal(t, tt.wait, time.Since(start))
				time.Sleep(time.Hour)
				require.NoError(t, say(client), "the limit is on the first byte")
				client.Close()
				<-done
			})
		})
	}
}

func TestDetectTimeoutWithPeek(t *testing.T) {
	client, accepted := conntest.Pair(t)
	go Detect(all3(), WithDetectTimeout(10*time.Millisecond)).Call(t.Context(), accepted)
	got := make([]byte, len("opaque: "))
	_, err := io.ReadFull(client, got)
	require.NoError(t, err)
	assert.Equal(t, "opaque: ", string(got))
	require.NoError(t, say(client))
	client.CloseWrite()
	_, err = io.ReadAll(client)
	require.NoError(t, err)
}

func TestDetectEnds(t *testing.T) {
	ways(t, func(t *testing.T, pair func() (*net.TCPConn, net.Conn)) {
		why := errors.New("enough")
		for name, tt := range map[string]struct {
			to   Protocols
			do   func(client *net.TCPConn, cancel context.CancelCauseFunc)
			want error
			text string
			ends error
		}{
			"reset": {all3(), func(c *net.TCPConn, _ context.CancelCauseFunc) { reset(c) },
				syscall.ECONNRESET, "detect: no first byte: read tcp", net.ErrClosed},
			"context": {all3(), func(_ *net.TCPConn, cancel context.CancelCauseFunc) { cancel(why) },
				why, "detect: no first byte: enough", syscall.ECONNRESET},
			"no server": {Protocols{HTTP1: named("one")}, func(c *net.TCPConn, _ context.CancelCauseFunc) { io.WriteString(c, "*1\r\n") },
				layer.ErrNoRoute, "detect: no route: no server for this kind of connection", syscall.ECONNRESET},
		} {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				client, accepted := pair()
				waiting := whenWaited(ctx, func() { tt.do(client, cancel) })
				_, err := Detect(tt.to).Call(waiting, accepted)
				require.ErrorIs(t, err, tt.want)
				require.ErrorContains(t, err, tt.text)
				assert.NotErrorIs(t, err, layer.ErrNotReady)
				_, err = io.ReadAll(client)
				if tt.ends == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, tt.ends)
				}
			})
		}
	})
}

// A rejected connection stays unread on Linux.
func TestDetectRejects(t *testing.T) {
	ways(t, func(t *testing.T, pair func() (*net.TCPConn, net.Conn)) {
		client, accepted := pair()
		io.WriteString(client, "GET / HTTP/1.1\r\n\r\n")
		_, err := Detect(Protocols{HTTP1: rejecting()}).Call(t.Context(), accepted)
		require.ErrorContains(t, err, "limit: not ready: full")
		if _, unseen := accepted.(halves); unseen {
			assert.NotErrorIs(t, err, layer.ErrNotReady)
			require.ErrorContains(t, err, "detect: rejected after the first bytes were read: ")
			_, err = client.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			return
		}
		require.ErrorIs(t, err, layer.ErrNotReady)
		got := make([]byte, 18)
		_, err = io.ReadFull(accepted, got)
		require.NoError(t, err)
		assert.Equal(t, "GET / HTTP/1.1\r\n\r\n", string(got))

		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = Detect(all3()).Call(gone, accepted)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestDetectReady(t *testing.T) {
	type mock = layertest.Mock[net.Conn, ByteCount]
	synctest.Test(t, func(t *testing.T) {
		one, other := &mock{}, &mock{}
		d := Detect(Protocols{HTTP1: one, Opaque: other})
		require.ErrorIs(t, layer.Poll(d), layer.ErrNotReady)
		one.Allow(1)
		require.NoError(t, layer.Poll(d))
		one.Close()
		time.AfterFunc(time.Second, func() { other.Allow(1) })
		start := time.Now()
		require.NoError(t, d.Ready(t.Context()))
		assert.Equal(t, time.Second, time.Since(start))
		other.Close()
		require.ErrorIs(t, d.Ready(t.Context()), layer.ErrClosed)
		require.NoError(t, layer.Poll(Detect(Protocols{})))
	})
}

func TestDetectDescribe(t *testing.T) {
	d := Detect(Protocols{HTTP1: Forward(to(nil)), Opaque: Forward(to(nil))})
	assert.Equal(t, `detect
  http1
    forward
      layer.Func
  opaque
    forward
      layer.Func
`, layer.Describe(d).String())
}
