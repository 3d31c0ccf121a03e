package h2

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// FuzzDecoder compares the decoder with that of x/net. A block that it accepts
// has the same fields there.
func FuzzDecoder(f *testing.F) {
	f.Add(block(get...), []byte{0x82, 0x84})
	f.Add([]byte("\x40\x01a\x01b"), []byte{0xbe})
	f.Add([]byte("\x3f\xe1\x1f\x40\x81\x1f\x81\x1f"), []byte("\x20\x3f\xe1\x1f\xbe"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		own := newDecoder()
		reference := hpack.NewDecoder(tableSize, nil)
		for _, b := range [][]byte{first, second} {
			got, err := own.decode(b, nil, 1<<30)
			if err != nil {
				return
			}
			want, err := reference.DecodeFull(b)
			if err != nil && strings.Contains(err.Error(), "dynamic table size update MUST") {
				return // x/net refuses the second of two updates
			}
			require.NoError(t, err)
			require.Len(t, got, len(want))
			for i, f := range got {
				require.Equal(t, want[i].Name, f.name.lower)
				require.Equal(t, want[i].Value, f.value)
			}
		}
	})
}

// fakeConn returns fixed input, and keeps the output.
type fakeConn struct {
	net.Conn
	in     *bytes.Reader
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex
	out    bytes.Buffer
	hold   func() bool // true: input follows later
}

func newFakeConn(in []byte) *fakeConn {
	return &fakeConn{in: bytes.NewReader(in), closed: make(chan struct{})}
}

func (c *fakeConn) Read(p []byte) (int, error) {
	if c.in.Len() == 0 && c.hold != nil {
		for c.hold() {
			select {
			case <-c.closed:
				return 0, net.ErrClosed
			case <-time.After(100 * time.Microsecond):
			}
		}
	}
	return c.in.Read(p)
}

func (c *fakeConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(p)
}

func (c *fakeConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// written returns a copy of the output, because the writer may still run.
func (c *fakeConn) written() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.out.Bytes())
}

// answered reports whether HEADERS, RST_STREAM or GOAWAY was written.
func (c *fakeConn) answered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b := c.out.Bytes(); len(b) >= frameHead; b = b[min(len(b), frameHead+frameLength(b)):] {
		if b[3] == frameHeaders || b[3] == frameRSTStream || b[3] == frameGoAway {
			return true
		}
	}
	return false
}

func (*fakeConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*fakeConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*fakeConn) SetDeadline(time.Time) error      { return nil }
func (*fakeConn) SetReadDeadline(time.Time) error  { return nil }
func (*fakeConn) SetWriteDeadline(time.Time) error { return nil }

// FuzzServer sends any frames to a server. The server ends with the input, and
// its output is a sequence of frames.
func FuzzServer(f *testing.F) {
	seed := func(write func(fr *http2.Framer)) {
		var b bytes.Buffer
		fr := http2.NewFramer(&b, nil)
		_ = fr.WriteSettings()
		write(fr)
		f.Add(b.Bytes())
	}
	headers := func(fr *http2.Framer, id uint32, end bool, fields ...string) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(fields...), EndHeaders: true, EndStream: end, PadLength: 3})
	}
	seed(func(fr *http2.Framer) {
		headers(fr, 1, false, get...)
		_ = fr.WriteDataPadded(1, false, []byte("abc"), []byte{0, 0})
		headers(fr, 1, true, "x: y")
		_ = fr.WriteRSTStream(1, 8)
	})
	seed(func(fr *http2.Framer) {
		_ = fr.WritePing(false, [8]byte{})
		_ = fr.WriteWindowUpdate(0, 100)
		headers(fr, 3, true, ":method: CONNECT", ":authority: h:1")
		_ = fr.WriteGoAway(0, 0, nil)
	})
	f.Fuzz(func(t *testing.T, in []byte) {
		nc := newFakeConn(append([]byte(preface), in...))
		c := NewServerConn(context.Background(), nc, &message.ServerConfig{
			Sweeper: new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler), MaxStreamResets: 10,
			Exchange: func(req *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Header: req.Header, Body: req.Body, ContentLength: -1}, nil
			},
		})
		require.Error(t, c.Serve())
		checkFrames(t, nc.written())
	})
}

func checkFrames(t *testing.T, b []byte) {
	for len(b) > 0 {
		require.GreaterOrEqual(t, len(b), frameHead)
		n := frameHead + frameLength(b)
		require.GreaterOrEqual(t, len(b), n)
		b = b[n:]
	}
}

// FuzzClient sends any frames to a client with a request in progress.
func FuzzClient(f *testing.F) {
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	_ = fr.WriteSettings()
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status: 103", "a: b"), EndHeaders: true})
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status: 200", "trailer: x"), EndHeaders: true})
	_ = fr.WriteData(1, false, []byte("abc"))
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("x: y"), EndHeaders: true, EndStream: true})
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		nc := newFakeConn(in)
		nc.hold = func() bool { // until the request was sent
			nc.mu.Lock()
			defer nc.mu.Unlock()
			return !bytes.Contains(nc.out.Bytes(), []byte("/fuzzed"))
		}
		nc.in = bytes.NewReader(nil)
		started := nc.hold
		nc.hold = func() bool {
			if started() {
				return true
			}
			nc.in, nc.hold = bytes.NewReader(in), nil
			return false
		}
		c := NewClientConn(nc, &ClientConfig{})
		require.True(t, c.Reserve())
		req, err := http.NewRequest("GET", "http://h/fuzzed", nil)
		require.NoError(t, err)
		rsp, err := c.RoundTrip(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, rsp.Body)
			_ = rsp.Body.Close()
		}
		<-c.Done()
		require.Zero(t, c.Active())
		checkFrames(t, nc.written()[len(preface):])
	})
}

// FuzzRequest sends the same fields to this server and to that of x/net, which
// net/http uses. A request that this one accepts is accepted there, and equal.
func FuzzRequest(f *testing.F) {
	for _, fields := range [][]string{
		get, with(get, "host: host.test"), with(get, "host: HOST.test"), with(get, "cookie: a", "cookie: b"), with(get[:2], ":path: /a%20?x", ":authority: h:1"),
		with(get, "te: trailers", "x: y", "x: z"), {":method: CONNECT", ":authority: h:1"}, with(get, "content-length: 0"),
		{":method: OPTIONS", ":scheme: https", ":path: *", ":authority: [::1]:2"}, with(get, "expect: 100-continue", "trailer: x"),
	} {
		f.Add(strings.Join(fields, "\n"))
	}
	f.Fuzz(func(t *testing.T, text string) {
		fields := strings.Split(text, "\n")
		for _, field := range fields {
			if len(field) < 2 || !strings.Contains(field[1:], ":") {
				return
			}
		}
		var in bytes.Buffer
		in.WriteString(http2.ClientPreface)
		fr := http2.NewFramer(&in, nil)
		_ = fr.WriteSettings()
		b := block(fields...)
		if len(b) > 16000 {
			return
		}
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b, EndHeaders: true, EndStream: true})

		var own, standard *http.Request
		c := NewServerConn(context.Background(), newFakeConn(in.Bytes()), &message.ServerConfig{
			Sweeper: new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler),
			Exchange: func(req *http.Request) (*http.Response, error) {
				own = req
				return &http.Response{StatusCode: 204}, nil
			},
		})
		_ = c.Serve()
		if own == nil {
			return
		}
		nc := newFakeConn(in.Bytes())
		handled := make(chan *http.Request, 1)
		nc.hold = func() bool { return len(handled) == 0 && !nc.answered() }
		new(http2.Server).ServeConn(nc, &http2.ServeConnOpts{Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			handled <- req
		})})
		select {
		case standard = <-handled:
		default:
		}
		require.NotNil(t, standard, "accepted here only: %q", fields)
		require.Equal(t, standard.Method, own.Method)
		require.Equal(t, standard.RequestURI, own.RequestURI)
		require.Equal(t, standard.Host, own.Host)
		require.Equal(t, standard.URL, own.URL)
		for key, values := range standard.Header {
			require.Equal(t, values, own.Header[key], key)
		}
	})
}
