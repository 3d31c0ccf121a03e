package httplayer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
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
	for _, opts := range [][]ServerOption{nil, {WithMaxHeaderBytes(-1), WithMaxStreamResets(-1), WithHTTP2Config(http.HTTP2Config{}), WithLogger(nil)}} {
		o := newServerOptions(FromHandler(http.NotFoundHandler()), opts)
		assert.NotNil(t, o.Log)
		assert.NotNil(t, o.Refusal)
		o.Log, o.Exchange, o.Refusal = nil, nil, nil
		assert.Equal(t, message.ServerConfig{
			DrainTimeout: time.Second, MaxHeaderBytes: 256 << 10, HeaderTimeout: time.Minute,
			BodyIdle: time.Minute, WriteTimeout: 5 * time.Minute,
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
			conn, done := callOn(t, t.Context(), NewServer(handledBy(shapes), tt.opts...))
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
	s := NewServer(handledBy(shapes), WithHeaderTimeout(time.Second))
	conn, done := callOn(t, t.Context(), s)
	say(conn, "GET / HTTP/1.1\r\nHost: a\r\n")
	text, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, http.StatusRequestTimeout, statusOf(text))
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
				s := NewServer(handledBy(shapes), WithHeaderTimeout(4*time.Second))
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
	s := NewServer(handledBy(func(http.ResponseWriter, *http.Request) { served.Add(1) }), WithMaxHeaderBytes(32<<10))
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
	conn, done := callOn(t, t.Context(), NewServer(handledBy(shapes)))
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
				s := NewServer(handledBy(func(w http.ResponseWriter, r *http.Request) {
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
			s := NewServer(handledBy(func(w http.ResponseWriter, r *http.Request) {
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
	s := NewServer(handledBy(func(w http.ResponseWriter, r *http.Request) {
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
			s := NewServer(handledBy(func(w http.ResponseWriter, r *http.Request) { pipe(w, zeros{}) }),
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

// By default, a body with a length may pause for a minute, and any other body for any time.
func TestServerBodyPauses(t *testing.T) {
	for name, tt := range map[string]struct {
		start  string
		pause  time.Duration
		rest   string
		status int
	}{
		"length":       {"Content-Length: 4\r\n\r\nhe", 50 * time.Second, "re", http.StatusOK},
		"too long":     {"Content-Length: 4\r\n\r\nhe", 70 * time.Second, "", http.StatusRequestTimeout},
		"trickles":     {"Content-Length: 4\r\n\r\n", 0, "here", http.StatusOK},
		"chunked":      {"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n", time.Hour, "2\r\nre\r\n0\r\n\r\n", http.StatusOK},
		"within chunk": {"Transfer-Encoding: chunked\r\n\r\n4\r\nhe", time.Hour, "re\r\n0\r\n\r\n", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := NewServer(handledBy(func(w http.ResponseWriter, r *http.Request) {
					if _, err := io.ReadAll(r.Body); err != nil {
						w.WriteHeader(http.StatusRequestTimeout)
					}
				}))
				accepted, conn := net.Pipe()
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = s.Call(t.Context(), accepted)
				}()
				say(conn, "POST / HTTP/1.1\r\nHost: a\r\n"+tt.start)
				time.Sleep(tt.pause)
				for _, b := range []byte(tt.rest) {
					go say(conn, string(b))
					time.Sleep(50 * time.Second)
				}
				rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				require.NoError(t, err)
				assert.Equal(t, tt.status, rsp.StatusCode)
				_ = conn.Close()
				<-done
			})
		})
	}
}

// The handler receives the error with the reason.
func TestServerSlowBodyStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan error, 1)
		s := NewServer(handledBy(func(_ http.ResponseWriter, r *http.Request) {
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

// attack writes the frames of step i of an attack to a buffer.
type attack func(fr *xhttp2.Framer, i uint32)

// headerBlock encodes a POST request to a path that does not respond, and more
// fields, as literals.
func headerBlock(more ...string) []byte {
	var w bytes.Buffer
	enc := hpack.NewEncoder(&w)
	enc.SetMaxDynamicTableSize(0)
	fields := append([]string{":method", "POST", ":scheme", "http", ":path", "/hang", ":authority", "h"}, more...)
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return w.Bytes()[1:] // without the update of the table size, which only the first block may have
}

// attacks are the known attacks on HTTP/2 servers. Each repeats cheap frames.
func attacks() map[string]attack {
	headers := func(fr *xhttp2.Framer, id uint32, end bool) {
		_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: headerBlock(), EndHeaders: true, EndStream: end})
	}
	once := func(first, next attack) attack {
		return func(fr *xhttp2.Framer, i uint32) {
			if i == 0 {
				first(fr, i)
			}
			next(fr, i)
		}
	}
	open := func(fr *xhttp2.Framer, _ uint32) { headers(fr, 1, false) }
	return map[string]attack{
		"rapid reset": func(fr *xhttp2.Framer, i uint32) { // CVE-2023-44487
			headers(fr, 2*i+1, true)
			_ = fr.WriteRSTStream(2*i+1, xhttp2.ErrCodeCancel)
		},
		"MadeYouReset by WINDOW_UPDATE of 0": func(fr *xhttp2.Framer, i uint32) { // CVE-2025-8671
			headers(fr, 2*i+1, true)
			_ = fr.WriteRawFrame(xhttp2.FrameWindowUpdate, 0, 2*i+1, make([]byte, 4))
		},
		"MadeYouReset by window overflow": func(fr *xhttp2.Framer, i uint32) {
			headers(fr, 2*i+1, true)
			_ = fr.WriteWindowUpdate(2*i+1, 1<<31-1)
		},
		"MadeYouReset by DATA after the end": func(fr *xhttp2.Framer, i uint32) {
			headers(fr, 2*i+1, true)
			_ = fr.WriteData(2*i+1, true, nil)
		},
		"MadeYouReset by PRIORITY": func(fr *xhttp2.Framer, i uint32) {
			headers(fr, 2*i+1, true)
			_ = fr.WritePriority(2*i+1, xhttp2.PriorityParam{StreamDep: 2*i + 1})
		},
		"CONTINUATION flood": once(func(fr *xhttp2.Framer, _ uint32) { // CVE-2024-27316
			_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlock()})
		}, func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteContinuation(1, false, make([]byte, 1000)) }),
		"empty CONTINUATION": once(func(fr *xhttp2.Framer, _ uint32) {
			_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlock()})
		}, func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteContinuation(1, false, nil) }),
		"empty DATA": once(open, func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteData(1, false, nil) }), // CVE-2019-9518
		"padded empty DATA": once(open, func(fr *xhttp2.Framer, _ uint32) {
			_ = fr.WriteRawFrame(xhttp2.FrameData, xhttp2.FlagDataPadded, 1, []byte{0})
		}),
		"PING":         func(fr *xhttp2.Framer, _ uint32) { _ = fr.WritePing(false, [8]byte{}) }, // CVE-2019-9512
		"SETTINGS":     func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteSettings() },             // CVE-2019-9515
		"PING ack":     func(fr *xhttp2.Framer, _ uint32) { _ = fr.WritePing(true, [8]byte{}) },
		"GOAWAY":       func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteGoAway(0, xhttp2.ErrCodeNo, nil) },
		"SETTINGS ack": func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteSettingsAck() },
		"PRIORITY": func(fr *xhttp2.Framer, i uint32) { // CVE-2019-9513
			_ = fr.WritePriority(2*i+1, xhttp2.PriorityParam{Weight: 1})
		},
		"tiny WINDOW_UPDATE": once(open, func(fr *xhttp2.Framer, i uint32) { _ = fr.WriteWindowUpdate(i%2, 1) }),
		"unknown frames":     func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteRawFrame(0xee, 0, 0, nil) },
		"too many streams":   func(fr *xhttp2.Framer, i uint32) { headers(fr, 2*i+1, false) },
		"HPACK bomb": func(fr *xhttp2.Framer, i uint32) { // CVE-2016-6581
			b := append(headerBlock(), 0x40, 1, 'x', 127, 0x81, 0x1e)
			b = append(b, bytes.Repeat([]byte("a"), 3968)...)
			b = append(b, bytes.Repeat([]byte{0xbe}, 12000)...)
			_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: b, EndHeaders: true})
		},
		"malformed requests": func(fr *xhttp2.Framer, i uint32) {
			_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{
				StreamID: 2*i + 1, BlockFragment: headerBlock("connection", "close"), EndHeaders: true, EndStream: true,
			})
		},
	}
}

// TestServerAttacks runs each attack through a proxy, beside a good client. The
// connection of the attack ends, no request of the good client fails, and no
// request of the attack stays upstream.
func TestServerAttacks(t *testing.T) {
	var held, most atomic.Int64
	up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hang" {
			_, _ = io.WriteString(w, "hello")
			return
		}
		n := held.Add(1)
		defer held.Add(-1)
		most.Store(max(most.Load(), n))
		<-r.Context().Done()
	}))
	addr := serve(t, Handler(endpoint(t, up, WithHTTP2())))
	for name, attack := range attacks() {
		t.Run(name, func(t *testing.T) {
			good, stop := client(t, true), make(chan struct{})
			served := make(chan int)
			go func() {
				n := 0
				defer func() { served <- n }()
				for ; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					rsp, err := good.Get("http://" + addr + "/")
					if !assert.NoError(t, err) {
						return
					}
					text, err := io.ReadAll(rsp.Body)
					_ = rsp.Body.Close()
					if !assert.NoError(t, err) || !assert.Equal(t, "hello", string(text)) {
						return
					}
				}
			}()
			code, steps, err := runAttack(t, addr, attack)
			close(stop)
			n := <-served
			require.NoError(t, err)
			t.Logf("ended with %v after %d steps; the good client was served %d times", code, steps, n)
			assert.Equal(t, xhttp2.ErrCodeEnhanceYourCalm, code)
			assert.Positive(t, n)
			assert.LessOrEqual(t, most.Swap(0), int64(2*newServerOptions(FromHandler(http.NotFoundHandler()), nil).MaxStreams))
			require.Eventually(t, func() bool { return held.Load() == 0 }, patience, time.Millisecond)
		})
	}
}

// runAttack repeats an attack until the server ends the connection. It returns the
// code of the GOAWAY.
func runAttack(t *testing.T, addr string, step attack) (code xhttp2.ErrCode, steps uint32, err error) {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	var out bytes.Buffer
	out.WriteString(xhttp2.ClientPreface)
	fr := xhttp2.NewFramer(&out, nc)
	fr.AllowIllegalWrites = true
	_ = fr.WriteSettings()
	ended := make(chan error, 1)
	go func() {
		err := errors.New("the connection ended without a GOAWAY")
		for {
			f, failed := fr.ReadFrame()
			if failed != nil {
				ended <- err
				return
			}
			if g, ok := f.(*xhttp2.GoAwayFrame); ok {
				code, err = g.ErrCode, nil
			}
		}
	}()
	for {
		for range 20 {
			step(fr, steps)
			steps++
		}
		if _, failed := nc.Write(out.Bytes()); failed != nil {
			return code, steps, <-ended
		}
		out.Reset()
		select {
		case err := <-ended:
			return code, steps, err
		default:
		}
	}
}

// An unread body that does not arrive delays neither the response nor the end of a drain.
func TestServerRespondsDuringStalledBody(t *testing.T) {
	t.Parallel()
	refusals := map[string]http.Handler{
		"error": Handler(serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
			return nil, &layer.Error{Layer: "router", Kind: layer.ErrNoRoute}
		})),
		"handler": http.NotFoundHandler(),
		// These begin the answer, and net/http reads before that, while they run.
		"long": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			say(w, strings.Repeat("x", 10_000))
		}),
		"flushed": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			flush(w)
		}),
	}
	for name, h := range refusals {
		for how, body := range map[string]string{
			"length": "Content-Length: 1000\r\n\r\nx", "chunks": "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", "nothing": "Content-Length: 1000\r\n\r\n",
		} {
			for _, drained := range []bool{false, true} {
				t.Run(name+" "+how, func(t *testing.T) {
					t.Parallel()
					entered := make(chan struct{}, 1)
					front := servingBy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						entered <- struct{}{}
						h.ServeHTTP(w, r)
					}), WithMinBodyRate(200*time.Millisecond, 0))
					c := wireTo(t, front.addr)
					say(c, "POST / HTTP/1.1\r\nHost: web\r\n"+body)
					if drained {
						<-entered
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						defer cancel()
						require.NoError(t, front.Drain(ctx))
					}
					rsp, err := http.ReadResponse(c.in, nil)
					require.NoError(t, err)
					read(t, rsp)
					assert.Equal(t, http.StatusNotFound, rsp.StatusCode)
					_, err = c.in.ReadByte()
					require.ErrorIs(t, err, io.EOF, "the rest might be taken for a request")
				})
			}
		}
	}
}

// A client that reads slowly is served on the same connection, even if net/http has read
// its request body.
func TestServerSlowReaderWithUnreadBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handled := make(chan struct{})
		s := NewServer(handledBy(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/first" {
				say(w, strings.Repeat("x", 10_000)) // so much begins the answer
				close(handled)
				return
			}
			time.Sleep(time.Second)
			if r.Context().Err() == nil {
				say(w, "still there")
			}
		}), WithMinBodyRate(time.Second, 0))
		conn, client := net.Pipe()
		defer client.Close()
		over := make(chan error, 1)
		go func() {
			_, err := s.Call(t.Context(), conn)
			over <- err
		}()
		sayf(client, "POST /first HTTP/1.1\r\nHost: web\r\nContent-Length: 3\r\n\r\nabc")
		all, piece := "", make([]byte, 100)
		for returned := false; !returned; {
			synctest.Wait()
			select {
			case <-handled:
				returned = true // and the end of the answer is being written
			default:
				n, err := client.Read(piece)
				require.NoError(t, err)
				all += string(piece[:n])
			}
		}
		time.Sleep(time.Minute)
		for !strings.HasSuffix(all, "\r\n0\r\n\r\n") && strings.Count(all, "x") < 10_000 {
			n, err := client.Read(piece)
			require.NoError(t, err)
			all += string(piece[:n])
		}
		if strings.Contains(all, "chunked") {
			for !strings.HasSuffix(all, "0\r\n\r\n") {
				n, err := client.Read(piece)
				require.NoError(t, err)
				all += string(piece[:n])
			}
		}
		require.NotContains(t, all, "Connection: close")
		sayf(client, "GET /second HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
		rest, err := io.ReadAll(client)
		require.NoError(t, err)
		assert.Contains(t, string(rest), "still there")
		<-over
	})
}

// An unread body that arrives in time affects neither the response nor the connection.
func TestServerReadsUnreadBodyInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(handledBy(func(w http.ResponseWriter, r *http.Request) {
			flush(w)
			time.Sleep(time.Minute)
			assert.NoError(t, r.Context().Err())
			say(w, r.URL.Path)
		}), WithMinBodyRate(time.Second, 0))
		conn, client := net.Pipe()
		over := make(chan error, 1)
		go func() {
			_, err := s.Call(t.Context(), conn)
			over <- err
		}()
		in := bufio.NewReader(client)
		for _, path := range []string{"/first", "/second"} {
			sayf(client, "POST %s HTTP/1.1\r\nHost: web\r\nContent-Length: 3\r\n\r\na", path)
			time.Sleep(900 * time.Millisecond)
			go say(client, "bc")
			rsp, err := http.ReadResponse(in, nil)
			require.NoError(t, err)
			assert.Equal(t, path, read(t, rsp))
			assert.False(t, rsp.Close)
		}
		client.Close()
		<-over
	})
}
