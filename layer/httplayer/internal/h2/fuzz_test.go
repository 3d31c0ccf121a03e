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
	start func(out []byte) bool // the condition for the first byte; nil without one
	end   func(out []byte) bool // the condition for the end of the input; nil without one

	mu      sync.Mutex
	changed sync.Cond
	in      *bytes.Reader
	out     bytes.Buffer
	closed  bool
}

func newFakeConn(in []byte) *fakeConn {
	c := &fakeConn{in: bytes.NewReader(in)}
	c.changed.L = &c.mu
	return c
}

func (c *fakeConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed {
		switch {
		case int64(c.in.Len()) == c.in.Size() && c.start != nil && !c.start(c.out.Bytes()),
			c.in.Len() == 0 && c.end != nil && !c.end(c.out.Bytes()):
			c.changed.Wait()
		default:
			return c.in.Read(p)
		}
	}
	return 0, net.ErrClosed
}

func (c *fakeConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.changed.Broadcast()
	return c.out.Write(p)
}

func (c *fakeConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.changed.Broadcast()
	return nil
}

// written returns a copy of the output, because the writer may still run.
func (c *fakeConn) written() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.out.Bytes())
}

// began reports whether the output has HEADERS, RST_STREAM or GOAWAY.
func began(out []byte) bool {
	return hasFrame(out, func(typ, _ byte) bool { return typ == frameHeaders }) || finished(out)
}

// finished reports whether the output has a frame with END_STREAM, RST_STREAM or GOAWAY.
func finished(out []byte) bool {
	return hasFrame(out, func(typ, flags byte) bool {
		return typ <= frameHeaders && flags&flagEndStream != 0 || typ == frameRSTStream || typ == frameGoAway
	})
}

func hasFrame(out []byte, is func(typ, flags byte) bool) bool {
	for b := bytes.TrimPrefix(out, []byte(preface)); len(b) >= frameHead; b = b[min(len(b), frameHead+frameLength(b)):] {
		if is(b[3], b[4]) {
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
		nc.start = finished // the request was sent
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
