package rowtest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"       //nolint:depguard // its Framer is the raw peer
	"golang.org/x/net/http2/hpack" //nolint:depguard // of the raw peer
)

// serveOne is the HTTP/1.1 server. It sends to waiting when a request is to be left unanswered.
func serveOne(conn net.Conn, waiting chan<- struct{}) {
	in := bufio.NewReader(conn)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		// The path selects the response. An unknown path, like /wait, gets none.
		answer := map[string]string{
			"/reason":   "HTTP/1.1 200 Very Fine\r\nContent-Length: 2\r\n\r\nok",
			"/hints":    "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
			"/trailers": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n2\r\nok\r\n0\r\nSum: 1\r\n\r\n",
			"/early":    "HTTP/1.1 413 Too Much\r\nContent-Length: 5\r\n\r\nlarge",
			"/head":     "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
			"/switch": "HTTP/1.1 101 Switched Over\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: " +
				acceptOf(r.Header.Get("Sec-WebSocket-Key")) + "\r\n\r\n",
		}[r.URL.Path]
		if r.Method == http.MethodConnect {
			answer = "HTTP/1.1 200 Connected\r\n\r\n"
		}
		if r.URL.Path == "/wait" {
			waiting <- struct{}{}
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
		switch {
		// Both responses turn the connection into a tunnel, in which the server echoes everything.
		case r.Method == http.MethodConnect || r.URL.Path == "/switch":
			_, _ = io.Copy(conn, in)
			return
		// The connection stays open until the client closes it, so that only the proxy can end the request.
		case r.URL.Path == "/early" || r.URL.Path == "/wait":
			_, _ = io.Copy(io.Discard, in)
			return
		}
	}
}

// serveTwo is the HTTP/2 server. It sends to waiting when a request is to be left unanswered, and
// the codes of resets that it receives to reset.
func serveTwo(conn net.Conn, waiting chan<- struct{}, reset chan<- http2.ErrCode) {
	in := bufio.NewReader(conn)
	// A client begins with a fixed text.
	if _, err := io.ReadFull(in, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	c := newFramer(conn, in)
	// After a failed write, err ends the loop.
	err := c.WriteSettings()
	for err == nil {
		var frame http2.Frame
		if frame, err = c.ReadFrame(); err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.RSTStreamFrame:
			reset <- f.ErrCode
		case *http2.MetaHeadersFrame:
			switch f.PseudoValue("path") {
			case "/two/reset":
				err = c.WriteRSTStream(f.StreamID, http2.ErrCodeEnhanceYourCalm)
			case "/two/broken":
				err = c.block(f.StreamID, false, ":status", "200")
				// The stream is reset after the response headers, so the client already has a status.
				if err == nil {
					err = c.WriteRSTStream(f.StreamID, http2.ErrCodeEnhanceYourCalm)
				}
			case "/two/trailers":
				if err = c.block(f.StreamID, false, ":status", "200"); err == nil {
					if err = c.WriteData(f.StreamID, false, []byte("ok")); err == nil {
						err = c.block(f.StreamID, true, "sum", "1")
					}
				}
			case "/two/hold":
				// The stream gets no response.
				waiting <- struct{}{}
			}
		default:
			err = c.acknowledge(frame)
		}
	}
}

// framer is one end of an HTTP/2 connection that reads and writes single frames. A net/http client or
// server could not send what these tests need.
// framer is one end of an HTTP/2 connection.
type framer struct {
	*http2.Framer
	enc *hpack.Encoder
	// enc writes to text, which holds one header block at a time.
	text bytes.Buffer
}

// newFramer returns a framer that reads frames from r and writes frames to w.
func newFramer(w io.Writer, r io.Reader) *framer {
	c := &framer{Framer: http2.NewFramer(w, r)}
	// 4096 bytes is the default size of HPACK's table.
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.enc = hpack.NewEncoder(&c.text)
	return c
}

// block sends a header block with the names and values in fields, which alternate. end ends the
// stream.
func (c *framer) block(id uint32, end bool, fields ...string) error {
	c.text.Reset()
	for field := range slices.Chunk(fields, 2) {
		_ = c.enc.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // cannot fail: it writes to memory
	}
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.text.Bytes(), EndStream: end, EndHeaders: true})
}

// acknowledge answers SETTINGS and PING frames, and ignores others.
func (c *framer) acknowledge(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return c.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.WritePing(true, f.Data)
		}
	}
	return nil
}

// peer is an HTTP/2 client that uses a single stream.
type peer struct {
	*framer
	extended uint32 // the server's SETTINGS_ENABLE_CONNECT_PROTOCOL
}

// newPeer connects to the HTTP/2 server at addr and exchanges settings with it.
func newPeer(t *testing.T, addr string) *peer {
	t.Helper()
	conn, in := dial(t, addr)
	say(t, conn, http2.ClientPreface)
	c := &peer{framer: newFramer(conn, in)}
	require.NoError(t, c.WriteSettings())
	// A server's first frame is always SETTINGS.
	frame, err := c.ReadFrame()
	require.NoError(t, err)
	settings, ok := frame.(*http2.SettingsFrame)
	require.True(t, ok, frame)
	c.extended, _ = settings.Value(http2.SettingEnableConnectProtocol)
	require.NoError(t, c.WriteSettingsAck())
	return c
}

// headers sends the request headers.
func (c *peer) headers(t *testing.T, end bool, fields ...string) {
	t.Helper()
	require.NoError(t, c.block(1, end, fields...))
}

// next returns the next frame of type F, and skips others. It fails if other headers, data or a
// reset come first.
func next[F http2.Frame](t *testing.T, c *peer) F {
	t.Helper()
	for {
		frame, err := c.ReadFrame()
		require.NoError(t, err)
		if f, ok := frame.(F); ok {
			return f
		}
		switch frame.(type) {
		case *http2.MetaHeadersFrame, *http2.DataFrame, *http2.RSTStreamFrame, *http2.GoAwayFrame:
			require.Fail(t, "another frame", frame)
		}
		// The server may only send settings or a ping in between.
		require.NoError(t, c.acknowledge(frame))
	}
}
