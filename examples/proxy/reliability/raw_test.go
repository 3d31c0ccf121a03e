package reliability

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"       //nolint:depguard // its Framer, to attack with
	"golang.org/x/net/http2/hpack" //nolint:depguard // for the Framer
)

// raw is an HTTP/2 client that can send any frames. One goroutine may write.
type raw struct {
	*http2.Framer
	conn   net.Conn
	encode *hpack.Encoder
	block  bytes.Buffer
	over   chan struct{} // closed when the server has closed the connection

	mu     sync.Mutex
	goAway []http2.GoAwayFrame
	status map[uint32]string
	resets map[uint32]http2.ErrCode
}

// counted counts written bytes.
type counted struct {
	net.Conn
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.n += int64(n)
	return n, err
}

// dialRaw returns a connection that the caller must close.
func dialRaw(t testing.TB, addr string) *raw {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	c := &raw{
		conn: &counted{Conn: conn}, over: make(chan struct{}),
		status: make(map[uint32]string), resets: make(map[uint32]http2.ErrCode),
	}
	c.Framer = http2.NewFramer(c.conn, conn)
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.encode = hpack.NewEncoder(&c.block)
	_, err = io.WriteString(c.conn, http2.ClientPreface)
	require.NoError(t, err)
	require.NoError(t, c.WriteSettings())
	go c.listen()
	return c
}

func (c *raw) close() {
	_ = c.conn.Close()
	<-c.over
}

func (c *raw) written() int64 { return c.conn.(*counted).n }

func (c *raw) listen() {
	defer close(c.over)
	for {
		f, err := c.ReadFrame()
		if _, ofStream := errors.AsType[http2.StreamError](err); ofStream {
			continue
		}
		if err != nil {
			return
		}
		c.hear(f)
	}
}

func (c *raw) hear(f http2.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch f := f.(type) {
	case *http2.GoAwayFrame:
		c.goAway = append(c.goAway, http2.GoAwayFrame{LastStreamID: f.LastStreamID, ErrCode: f.ErrCode})
	case *http2.MetaHeadersFrame:
		c.status[f.StreamID] = f.PseudoValue("status")
	case *http2.RSTStreamFrame:
		c.resets[f.StreamID] = f.ErrCode
	}
}

// goAwayCode returns the error code in the server's GOAWAY frame, if there was one.
func (c *raw) goAwayCode() (code http2.ErrCode, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.goAway) == 0 {
		return 0, false
	}
	return c.goAway[len(c.goAway)-1].ErrCode, true
}

// farewell returns the server's GOAWAY frames.
func (c *raw) farewell() []http2.GoAwayFrame {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.goAway
}

// answer returns a stream's result: a status, or "reset".
func (c *raw) answer(stream uint32) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.resets[stream]; ok && c.status[stream] == "" {
		return "reset"
	}
	return c.status[stream]
}

func (c *raw) request(stream uint32, method, path string, end bool, fields ...hpack.HeaderField) error {
	c.block.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "http"},
		{Name: ":authority", Value: "web.test"}, {Name: ":path", Value: path},
	}, fields...) {
		if err := c.encode.WriteField(f); err != nil {
			return err
		}
	}
	return c.headers(stream, end, c.block.Bytes())
}

// frameSize is the default maximum frame size.
const frameSize = 16 << 10

// headers sends a header block in as many frames as it needs.
func (c *raw) headers(stream uint32, end bool, block []byte) error {
	first := block[:min(len(block), frameSize)]
	block = block[len(first):]
	err := c.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: first, EndStream: end, EndHeaders: len(block) == 0,
	})
	for err == nil && len(block) > 0 {
		part := block[:min(len(block), frameSize)]
		block = block[len(part):]
		err = c.WriteContinuation(stream, len(block) == 0, part)
	}
	return err
}
