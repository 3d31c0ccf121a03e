package httplayer

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client
	"golang.org/x/net/http2/hpack"  //nolint:depguard // of the raw client

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
	"github.com/gotower/gotower/layer/layertest"
)

func TestServerDefaults(t *testing.T) {
	for _, opts := range [][]ServerOption{nil, {WithMaxHeaderBytes(-1), WithMaxStreamResets(-1), WithHTTP2Config(http.HTTP2Config{}), WithServerLogger(nil)}} {
		o := newServerOptions(opts)
		assert.NotNil(t, o.Log)
		o.Log = nil
		assert.Equal(t, message.ServerConfig{
			DrainTimeout: time.Second, MaxHeaderBytes: 32 << 10, HeaderTimeout: 5 * time.Second,
			BodyIdle: 10 * time.Second, MinBodyRate: 240, WriteTimeout: 5 * time.Minute,
			MaxStreams: 100, MaxStreamResets: 100, StreamWindow: 65_535, ConnWindow: 1_048_576, MaxFrameSize: 16_384,
			PingTimeout: 15 * time.Second,
		}, o.ServerConfig)
	}
}

// The SETTINGS of a client have the configured values.
func TestServerSettings(t *testing.T) {
	for name, tt := range map[string]struct {
		opts                    []ServerOption
		streams, window, frames uint32
	}{
		"default": {nil, 100, 65_535, 0}, // the default is not announced
		"set": {[]ServerOption{WithHTTP2Config(http.HTTP2Config{
			MaxConcurrentStreams: 7, MaxReceiveBufferPerStream: 1 << 17, MaxReadFrameSize: 1 << 20,
		})}, 7, 1 << 17, 60 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			conn, done := callOn(t, t.Context(), NewServer(http.HandlerFunc(shapes), tt.opts...))
			c := newFramerClient(t, conn)
			f, err := c.ReadFrame()
			require.NoError(t, err)
			settings := map[xhttp2.SettingID]uint32{}
			require.NoError(t, f.(*xhttp2.SettingsFrame).ForeachSetting(func(s xhttp2.Setting) error {
				settings[s.ID] = s.Val
				return nil
			}))
			assert.Equal(t, tt.streams, settings[xhttp2.SettingMaxConcurrentStreams])
			assert.Equal(t, tt.window, settings[xhttp2.SettingInitialWindowSize])
			assert.Equal(t, tt.frames, settings[xhttp2.SettingMaxFrameSize])
			more, ok := f.(*xhttp2.WindowUpdateFrame)
			for !ok {
				f, err = c.ReadFrame()
				require.NoError(t, err)
				more, ok = f.(*xhttp2.WindowUpdateFrame)
			}
			assert.EqualValues(t, 1<<20-65_535, more.Increment)
			conn.Close()
			<-done
		})
	}
}

func TestServerSlowHeaders(t *testing.T) {
	t.Parallel()
	s := NewServer(http.HandlerFunc(shapes), WithHeaderTimeout(time.Second))
	conn, done := callOn(t, t.Context(), s)
	say(conn, "GET / HTTP/1.1\r\nHost: a\r\n")
	text, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Empty(t, text)
	<-done
}

// The header timeout applies to an incomplete HTTP/2 preface.
func TestServerIncompletePreface(t *testing.T) {
	for _, said := range []string{"P", "PRI * HTTP/2.", "GET / HTTP/1.1\r\nHost: a\r\n"} {
		t.Run(said, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				var network layertest.Network
				l, err := network.Listen("tcp", "10.0.0.1:80")
				require.NoError(t, err)
				defer l.Close()
				conn, err := network.DialContext(ctx, "tcp", "10.0.0.1:80")
				require.NoError(t, err)
				defer conn.Close()
				accepted, err := l.Accept()
				require.NoError(t, err)
				s := NewServer(http.HandlerFunc(shapes), WithHeaderTimeout(4*time.Second))
				done := make(chan error, 1)
				go func() {
					_, err := s.Call(ctx, accepted)
					done <- err
				}()
				time.Sleep(3 * time.Second) // which the first byte may take
				begun := time.Now()
				say(conn, said)
				_, _ = io.Copy(io.Discard, conn)
				assert.InDelta(t, 4*time.Second, time.Since(begun), float64(2*sweep.Interval))
				err = <-done
				require.ErrorIs(t, err, layer.ErrTimeout)
				require.ErrorContains(t, err, "no request")
			})
		})
	}
}

func TestServerLargeHeaders(t *testing.T) {
	t.Parallel()
	served := atomic.Int64{}
	s := NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	t.Run("one of HTTP/1.1", func(t *testing.T) {
		conn, done := callOn(t, t.Context(), s)
		go say(conn, "GET / HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("x", 64<<10)+"\r\n\r\n")
		rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		assert.Equal(t, http.StatusRequestHeaderFieldsTooLarge, rsp.StatusCode)
		conn.Close()
		<-done
	})
	// Where it is far too large, net/http ends the connection instead.
	var some, many []string
	for i := range 4096 {
		many = append(many, fmt.Sprint("x-", i), "")
	}
	for range 300 {
		some = append(some, "x", strings.Repeat("y", 100))
	}
	for name, tt := range map[string]struct {
		fields []string
		told   bool
	}{
		"one of HTTP/2": {[]string{"x", strings.Repeat("x", 64<<10)}, false}, "many of HTTP/2": {many, true},
		"some of HTTP/2": {some, true},
	} {
		t.Run(name, func(t *testing.T) {
			conn, done := callOn(t, t.Context(), s)
			c := newFramerClient(t, conn)
			c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
			go c.openLarge(1, tt.fields)
			status := ""
			for {
				f, err := c.ReadFrame()
				if err != nil {
					break
				}
				if h, ok := f.(*xhttp2.MetaHeadersFrame); ok {
					status = h.PseudoValue("status")
					break
				}
			}
			assert.Equal(t, map[bool]string{true: "431"}[tt.told], status)
			conn.Close()
			<-done
		})
	}
	assert.Zero(t, served.Load())
}

// openLarge opens a stream with fields that take more than a frame.
func (c *framerClient) openLarge(stream uint32, fields []string) {
	var frames [][]byte
	c.block.Reset()
	all := append([]string{":method", "GET", ":scheme", "http", ":authority", "a", ":path", "/"}, fields...)
	for i := 0; i < len(all); i += 2 {
		_ = c.enc.WriteField(hpackField(all[i], all[i+1]))
	}
	for block := c.block.Bytes(); len(block) > 0; {
		n := min(len(block), 16_000)
		frames = append(frames, block[:n])
		block = block[n:]
	}
	for i, frame := range frames {
		if i == 0 {
			_ = c.WriteHeaders(xhttp2.HeadersFrameParam{
				StreamID: stream, BlockFragment: frame, EndStream: true, EndHeaders: len(frames) == 1,
			})
			continue
		}
		_ = c.WriteContinuation(stream, i == len(frames)-1, frame)
	}
}

// Endless CONTINUATION frames are read up to a limit and discarded. Then the connection ends.
func TestServerContinuationFlood(t *testing.T) {
	t.Parallel()
	conn, done := callOn(t, t.Context(), NewServer(http.HandlerFunc(shapes)))
	c := newFramerClient(t, conn)
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	_ = c.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}, EndStream: true})
	c.block.Reset()
	_ = c.enc.WriteField(hpackField("x", strings.Repeat("x", 15_000)))
	sent := 0
	for block := c.block.Bytes(); ; sent += len(block) {
		require.Less(t, sent, 64<<20, "the limit applies")
		if c.WriteContinuation(1, false, block) != nil {
			break
		}
	}
	got := <-done
	assert.Less(t, got.Sent, int64(4<<20))
}

// Of a client that opens and resets streams, the server handles few streams and sends fewer upstream
// (CVE-2023-44487). The same holds if the client causes the server to reset them (CVE-2025-8671).
func TestServerRapidReset(t *testing.T) {
	t.Parallel()
	for name, takeBack := range map[string]func(c *framerClient, stream uint32) error{
		"by the client": func(c *framerClient, stream uint32) error { return c.WriteRSTStream(stream, xhttp2.ErrCodeCancel) },
		"by the server": func(c *framerClient, stream uint32) error {
			return c.WriteRawFrame(xhttp2.FrameWindowUpdate, 0, stream, []byte{0, 0, 0, 0})
		},
	} {
		for _, proxied := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " proxied ", proxied), func(t *testing.T) {
				var handled, upstream atomic.Int64
				up := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					upstream.Add(1)
					<-r.Context().Done()
				}))
				proxy := Handler(endpoint(t, up))
				s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					handled.Add(1)
					if proxied { // an error response after a cancel also closes the connection
						proxy.ServeHTTP(w, r)
						return
					}
					<-r.Context().Done()
				}))
				conn, done := callOn(t, t.Context(), s)
				c := newFramerClient(t, conn)
				began := time.Now()
				stopped := make(chan struct{})
				go func() {
					defer close(stopped)
					for stream := uint32(1); stream < 200_000; stream += 2 {
						c.open(stream, true)
						if takeBack(c, stream) != nil {
							return
						}
					}
				}()
				_, _ = io.Copy(io.Discard, conn)
				<-done
				took := time.Since(began)
				conn.Close()
				<-stopped
				t.Logf("%d handled, %d sent upstream, over in %v", handled.Load(), upstream.Load(), took)
				// Where the machine is slow, streams may be there for a while:
				// no more of them than the connection may have.
				allowed := 300 + int64((100+100/0.25)*took.Seconds())
				assert.LessOrEqual(t, handled.Load(), allowed)
				assert.LessOrEqual(t, upstream.Load(), allowed)
			})
		}
	}
}

// A 100 Continue does not return a token for a stream reset, because a client can cause any
// number of them.
func TestServerRapidResetAfterContinue(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		table   func(n int) uint32
		lengths int // that answers are of, after the first 100
	}{
		"status indexed": {func(int) uint32 { return 4096 }, 0},
		"far back":       {func(int) uint32 { return 4096 }, 70}, // so that its index takes two bytes
		"literal":        {func(int) uint32 { return 0 }, 0},
		"table resized":  {func(n int) uint32 { return uint32(100 + n%2) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if n, err := strconv.Atoi(r.Header.Get("Length")); err == nil {
					say(w, strings.Repeat("x", n))
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			}))
			conn, done := callOn(t, t.Context(), s)
			defer conn.Close()
			c := newFramerClient(t, conn)
			const most = 1000
			n, stream, began := 0, uint32(1), time.Now()
			for answered := true; answered && n < most; n++ {
				if n == 0 || tt.table(n) != tt.table(n-1) { // once for each size
					_ = c.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingHeaderTableSize, Val: tt.table(n)})
				}
				c.open(stream, false, "expect", "100-continue")
				answered = c.headOf(stream)
				_ = c.WriteRSTStream(stream, xhttp2.ErrCodeCancel)
				stream += 2
				for i := 0; n == 0 && i < tt.lengths; i++ {
					c.open(stream, true, "length", strconv.Itoa(100+i))
					require.True(t, c.headOf(stream))
					stream += 2
				}
			}
			// Those that were there for a while do not count: some for each moment.
			t.Logf("%d streams in %v", n, time.Since(began))
			if allowed := 250 + int(100*time.Since(began).Seconds()); allowed < most {
				assert.LessOrEqual(t, n, allowed)
			}
			conn.Close()
			<-done
		})
	}
}

// headOf reads to the next header of a stream. It reports false where the connection
// ends before.
func (c *framerClient) headOf(stream uint32) bool {
	for {
		f, err := c.ReadFrame()
		if err != nil {
			return false
		}
		if f.Header().Type == xhttp2.FrameHeaders && f.Header().StreamID == stream {
			return true
		}
	}
}

// A reset after the start of the response does not count. A few resets before it are allowed.
func TestServerAllowsCancellation(t *testing.T) {
	s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			flush(w)
		}
		<-r.Context().Done()
	}))
	conn, done := callOn(t, t.Context(), s)
	c := newFramerClient(t, conn)
	stream := uint32(1)
	for range 1000 {
		c.open(stream, true)
		c.until(is(fmt.Sprint("head ", stream)))
		_ = c.WriteRSTStream(stream, xhttp2.ErrCodeCancel)
		stream += 2
	}
	for range 99 {
		c.open(stream, true)
		_ = c.WriteRSTStream(stream, xhttp2.ErrCodeCancel)
		stream += 2
	}
	c.open(stream, true)
	c.until(is(fmt.Sprint("head ", stream)))
	conn.Close()
	<-done
}

// The connection of a client that does not read is closed.
func TestServerStalledReaders(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("h2 ", h2), func(t *testing.T) {
			s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { pipe(w, zeros{}) }),
				WithWriteTimeout(50*time.Millisecond), WithHTTP2Config(http.HTTP2Config{}))
			conn, done := callOn(t, t.Context(), s)
			if h2 {
				c := newFramerClient(t, conn)
				_ = c.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: maxStream})
				_ = c.WriteWindowUpdate(0, maxStream-65_535)
				c.open(1, true)
			} else {
				say(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			}
			select {
			case <-done:
			case <-time.After(patience):
				require.Fail(t, "the connection stays open")
			}
		})
	}
}

// A paused or slow body is answered with 408, through a proxy.
func TestServerSlowBodies(t *testing.T) {
	t.Parallel()
	up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	for name, tt := range map[string]struct {
		opt  ServerOption
		more bool
	}{
		"stands":   {WithMinBodyRate(100*time.Millisecond, 0), false},
		"trickles": {WithMinBodyRate(100*time.Millisecond, 1<<30), true},
	} {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " h2 ", h2), func(t *testing.T) {
				t.Parallel()
				f := servingBy(t, Handler(endpoint(t, up)), tt.opt)
				body, feed := io.Pipe()
				stopped := make(chan struct{})
				go func() {
					defer close(stopped)
					for {
						if _, err := feed.Write([]byte("x")); err != nil || !tt.more {
							return
						}
						select { // a client that sends a byte from time to time
						case <-time.After(5 * time.Millisecond):
						case <-t.Context().Done():
							return
						}
					}
				}()
				req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+f.addr+"/", body)
				require.NoError(t, err)
				req.ContentLength = 1 << 20
				rsp, err := client(t, h2).Do(req)
				require.NoError(t, err)
				assert.Equal(t, http.StatusRequestTimeout, rsp.StatusCode, "%v", rsp.Header)
				rsp.Body.Close()
				feed.Close()
				<-stopped
			})
		}
	}
}

// The handler receives the error with the reason.
func TestServerSlowBodyStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan error, 1)
		s := NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.ReadAll(r.Body)
			told <- err
		}), WithMinBodyRate(20*time.Millisecond, 240))
		accepted, conn := net.Pipe()
		defer conn.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = s.Call(t.Context(), accepted)
		}()
		say(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe")
		err := <-told
		require.ErrorIs(t, err, layer.ErrIdleTimeout)
		require.ErrorContains(t, err, "too slowly")
		var network net.Error
		require.ErrorAs(t, err, &network)
		assert.True(t, network.Timeout())
		_, _ = io.Copy(io.Discard, conn)
		<-done
	})
}

// TestServerIdleMemory prints what idle connections cost, of the server's side
// and, for a socket, the client's.
func TestServerIdleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts memory")
	}
	const conns = 1000
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("h2 ", h2), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			f := servingOn(t, l, http.HandlerFunc(shapes), 0)
			before := memory()
			var clients []net.Conn
			for range conns {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.addr)
				require.NoError(t, err)
				clients = append(clients, conn)
				require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
				if h2 {
					c := newFramerClient(t, conn)
					c.open(1, true)
					c.until(is("end 1"))
					continue
				}
				say(conn, "GET /length HTTP/1.1\r\nHost: a\r\n\r\n")
				_, err = conn.Read(make([]byte, 1024))
				require.NoError(t, err)
			}
			each := (memory() - before) / conns
			t.Logf("%.1f KB for each of %d idle connections", float64(each)/1024, conns)
			assert.Less(t, each, int64(map[bool]int{false: 40 << 10, true: 60 << 10}[h2]))
			for _, c := range clients {
				c.Close()
			}
			cancel()
			require.Eventually(t, func() bool { return f.conns.Load() == 0 }, patience, time.Millisecond)
		})
	}
}

// memory is what the process has in use, stacks included.
func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
