package h2

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// pausing is a connection on which another goroutine may write between two Writes.
type pausing struct{ net.Conn }

func (c pausing) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	time.Sleep(time.Millisecond)
	return n, err
}

// servePipe serves one side of a pipe and returns the other one. A pipe has no buffer, so the
// server waits in Write while the test does not read.
func servePipe(t *testing.T, cfg message.ServerConfig) (net.Conn, *ServerConn) {
	nc, end := net.Pipe()
	there := pausing{end}
	cfg.Sweeper, cfg.Log = new(sweep.Sweeper), slog.New(slog.DiscardHandler)
	c := NewServerConn(t.Context(), there, &cfg)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Serve()
	}()
	t.Cleanup(func() {
		nc.Close()
		<-ended
	})
	return nc, c
}

// A client that reads no responses cannot queue any number of them.
func TestServerQueuesFewUnreadResponses(t *testing.T) {
	nc, c := servePipe(t, message.ServerConfig{Exchange: func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 204, Header: http.Header{"X-Large": {strings.Repeat("x", 4<<10)}}, Body: http.NoBody}, nil
	}})
	p := rawClientOn(t, nc)
	most := 0
	for id := uint32(1); id < 4000; id += 2 {
		if p.WriteHeaders(http2.HeadersFrameParam{
			StreamID: id, BlockFragment: block(get...), EndHeaders: true, EndStream: true,
		}) != nil {
			break // the server has closed the connection
		}
		for ended := false; !ended; runtime.Gosched() { // one stream at a time
			c.mu.Lock()
			ended = c.pending == 0 || c.err != nil
			most = max(most, c.queuedBytes())
			c.mu.Unlock()
		}
	}
	assert.Less(t, most, maxQueuedOutput)
	assert.Greater(t, most, maxQueuedOutput/2)
}

// A server that reads no requests cannot make the client queue any number of them.
func TestClientQueuesFewUnreadRequests(t *testing.T) {
	nc, there := net.Pipe()
	changed := make(chan struct{}, 100)
	c := NewClientConn(nc, &ClientConfig{Changed: func(*ClientConn) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})
	t.Cleanup(func() {
		c.Close()
		<-c.Done()
	})
	p := newPeer(t, there)
	require.NoError(t, p.WriteSettings())
	<-c.Settled()
	sent := 0
	for ; sent < 1000 && c.Reserve(); sent++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		req := request(t, "GET", "a", "/", nil).WithContext(ctx)
		req.Header["X-Large"] = []string{strings.Repeat("x", 16<<10)}
		_, err := c.RoundTrip(req)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	assert.Less(t, sent, 1000)
	assert.True(t, c.Usable())
	assert.Zero(t, c.Limit())
	for len(changed) > 0 {
		<-changed
	}
	go io.Copy(io.Discard, there)
	for !c.Reserve() {
		<-changed
	}
	c.Release()
}

// A server that does not read is found by PING after the end of all requests. Later requests would
// otherwise be rejected without an end, because the output of the client is full.
func TestClientPingsUnreadingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nc, there := net.Pipe()
		defer there.Close()
		c := NewClientConn(nc, &ClientConfig{PingInterval: 10 * time.Second})
		defer c.Close()
		require.NoError(t, newPeer(t, there).WriteSettings())
		<-c.Settled()
		require.True(t, c.Reserve())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.RoundTrip(request(t, "GET", "a", "/", nil).WithContext(ctx))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, c.Active())
		select {
		case <-c.Done():
			require.ErrorIs(t, c.Err(), errPingTimeout)
		case <-time.After(time.Hour):
			t.Fatal("the connection stays open")
		}
	})
}

// The PING follows one interval after the last read, and the connection ends one timeout later.
// Without requests, PINGs are sent only if PingWhileIdle is set.
func TestClientKeepAlive(t *testing.T) {
	for name, tt := range map[string]struct {
		whileIdle, request bool
		timeout, read      time.Duration // of a PING; time of the last read
		end                time.Duration // after the last read; 0: never
	}{
		"request":      {false, true, 3 * time.Second, 7 * time.Second, 13 * time.Second},
		"idle":         {false, false, 3 * time.Second, 7 * time.Second, 0},
		"while idle":   {true, false, 3 * time.Second, 7 * time.Second, 13 * time.Second},
		"long timeout": {true, false, time.Minute, 11 * time.Second, 70 * time.Second}, // after the first PING
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nc, there := net.Pipe()
				defer there.Close()
				c := NewClientConn(nc, &ClientConfig{PingInterval: 10 * time.Second, PingTimeout: tt.timeout, PingWhileIdle: tt.whileIdle})
				defer c.Close()
				up := newPeer(t, there)
				require.NoError(t, up.WriteSettings())
				go io.Copy(io.Discard, there)
				<-c.Settled()
				time.Sleep(tt.read)
				require.NoError(t, up.WriteSettings()) // the last read
				lastRead := time.Now()
				if tt.request {
					time.Sleep(2 * time.Second)
					require.True(t, c.Reserve())
					go func() { _, _ = c.RoundTrip(request(t, "GET", "a", "/", nil)) }()
				}
				select {
				case <-c.Done():
					require.ErrorIs(t, c.Err(), errPingTimeout)
					require.Equal(t, tt.end, time.Since(lastRead))
				case <-time.After(time.Hour):
					require.Zero(t, tt.end, "the connection stays open")
				}
			})
		})
	}
}

// A handler that ends its goroutine ends its stream, and nothing else is left.
func TestServerGoexit(t *testing.T) {
	s := serve(t, message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/exit" {
			runtime.Goexit()
		}
	})})
	p := rawClient(t, s.addr)
	p.headers(1, true, with(get[:2], ":path: /exit", ":authority: h")...)
	assert.Equal(t, http2.ErrCodeInternal, next[*http2.RSTStreamFrame](p).ErrCode)
	p.headers(3, true, get...)
	assert.EqualValues(t, 3, next[*http2.MetaHeadersFrame](p).StreamID)
	p.nc.Close()
	eventually(t, func() bool { return len(s.open()) == 0 }, "the connection has ended")
}

// The rest of a malformed request does not end the connection, because the client may not
// yet know that the stream was reset.
func TestServerRestOfMalformedRequest(t *testing.T) {
	s := serve(t, message.ServerConfig{Exchange: handledBy(handler())})
	p := rawClient(t, s.addr)
	p.headers(1, false, with(get, "connection: close")...)
	require.NoError(t, p.WriteData(1, false, []byte("body")))
	p.headers(1, true, "a: trailer")
	p.headers(3, true, with(get[:2], ":path: /length", ":authority: h")...)
	resets := 0
	for {
		f, err := p.ReadFrame()
		require.NoError(t, err)
		switch f := f.(type) {
		case *http2.RSTStreamFrame:
			assert.EqualValues(t, 1, f.StreamID)
			resets++
		case *http2.MetaHeadersFrame:
			assert.EqualValues(t, 3, f.StreamID)
			assert.Equal(t, 1, resets)
			return
		}
	}
}

// Frames that cost no bandwidth do not pay for others.
func TestServerEndsUselessFrames(t *testing.T) {
	for name, send := range map[string]func(p *peer) error{
		// A client may enlarge windows by 1 GiB in all that it never uses.
		"PING and WINDOW_UPDATE": func(p *peer) error {
			return errors.Join(p.WritePing(false, [8]byte{}), p.WriteWindowUpdate(1, 1024))
		},
		"PING acknowledgments of a drain": func(p *peer) error {
			return p.WritePing(true, [8]byte(binary.BigEndian.AppendUint64(nil, drainPing)))
		},
		"HEADERS after a reset": func(p *peer) error {
			return p.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block("a: b"), EndHeaders: true, EndStream: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc, c := servePipe(t, message.ServerConfig{Exchange: handledBy(handler())})
			p := rawClientOn(t, nc)
			go io.Copy(io.Discard, nc)
			p.headers(1, true, with(get[:2], ":path: /hang", ":authority: h")...)
			p.headers(3, false, with(get[:2], ":path: /hang", ":authority: h")...)
			require.NoError(t, p.WriteWindowUpdate(3, 0)) // the server resets the stream
			var err error
			for i := 0; i < 20_000 && err == nil; i++ {
				err = send(p)
			}
			nc.Close()
			eventually(t, func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.err != nil
			}, "the connection has ended")
			failed, ok := errors.AsType[*ConnError](c.err)
			require.True(t, ok, c.err)
			assert.Equal(t, message.CodeEnhanceYourCalm, failed.Code)
		})
	}
}

// Each INITIAL_WINDOW_SIZE costs work for all open streams.
func TestServerEndsLongSettings(t *testing.T) {
	p := rawClient(t, serve(t, message.ServerConfig{Exchange: handledBy(handler())}).addr)
	list := make([]http2.Setting, 2000)
	for i := range list {
		list[i] = http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000}
	}
	require.NoError(t, p.WriteSettings(list...))
	last, _ := p.ended()
	require.NotNil(t, last)
	assert.Equal(t, http2.ErrCodeEnhanceYourCalm, last.ErrCode)
}

// The final GOAWAY is not written into the middle of another frame.
func TestServerGoAwayBetweenFrames(t *testing.T) {
	body := strings.Repeat("x", 500<<10)
	for skip := 0; skip < 200<<10; skip += 20 << 10 { // bytes that are read before the error
		t.Run(strconv.Itoa(skip), func(t *testing.T) {
			t.Parallel()
			nc, c := servePipe(t, message.ServerConfig{Exchange: func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, ContentLength: -1, Body: io.NopCloser(strings.NewReader(body))}, nil
			}})
			p := rawClientOn(t, nc)
			require.NoError(t, p.WriteSettings(
				http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20},
			))
			require.NoError(t, p.WriteWindowUpdate(0, 1<<20))
			p.headers(1, true, get...)
			var received bytes.Buffer
			_, err := io.CopyN(&received, nc, int64(skip))
			require.NoError(t, err)
			require.NoError(t, p.WriteRawFrame(http2.FramePushPromise, 0, 1, nil))
			require.Eventually(t, func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.err != nil
			}, testTimeout, time.Millisecond)
			time.Sleep(10 * time.Millisecond) // the server waits for the end of a Write
			_, _ = io.Copy(&received, nc)
			for b := received.Bytes(); len(b) >= frameHead; {
				payload := b[frameHead:min(frameHead+frameLength(b), len(b))]
				if b[3] == frameData {
					assert.True(t, strings.Trim(string(payload), "x") == "", "a DATA frame has other bytes than the body")
				}
				b = b[frameHead+len(payload):]
			}
		})
	}
}
