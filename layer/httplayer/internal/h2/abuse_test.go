package h2

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// TestServerAcceptsHonestClients has many cancellations and control frames that must not be
// taken for an attack.
func TestServerAcceptsHonestClients(t *testing.T) {
	t.Parallel()
	s := serve(t, message.ServerConfig{MaxStreamResets: 100, Exchange: handledBy(handler())})
	t.Run("cancels answered streams", func(t *testing.T) {
		c := dial(t, s.addr, &ClientConfig{})
		for range 1000 {
			rsp, err := transport{c}.RoundTrip(request(t, "GET", s.addr, "/big", nil))
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
		require.NoError(t, c.Err())
	})
	t.Run("cancels old streams", func(t *testing.T) {
		p := rawClient(t, s.addr)
		for i := range uint32(200) {
			p.headers(2*i+1, true, with(get[:2], ":path: /hang", ":authority: h")...)
		}
		var conn *ServerConn
		eventually(t, func() bool {
			for _, c := range s.open() {
				c.mu.Lock()
				n := len(c.streams)
				c.mu.Unlock()
				if n == 200 {
					conn = c
				}
			}
			return conn != nil
		}, "the streams are open")
		opened := conn.ticks.Load()
		eventually(t, func() bool { return conn.ticks.Load() > opened+youngTicks }, "the streams are old")
		for i := range uint32(200) {
			require.NoError(t, p.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		}
		p.headers(1001, true, with(get[:2], ":path: /length", ":authority: h")...)
		assert.EqualValues(t, 1001, next[*http2.MetaHeadersFrame](p).StreamID)
	})
	t.Run("sends bodies of streams that the server resets at once", func(t *testing.T) {
		end := make(chan struct{})
		s := serve(t, message.ServerConfig{Exchange: func(req *http.Request) (*http.Response, error) {
			if req.URL.Path == "/upload" {
				<-end
				return nil, io.ErrUnexpectedEOF
			}
			return &http.Response{StatusCode: 204}, nil
		}})
		p := rawClient(t, s.addr)
		for i := range uint32(defaultStreams) {
			p.headers(2*i+1, false, ":method: POST", ":scheme: http", ":path: /upload", ":authority: h")
		}
		close(end)
		for range defaultStreams {
			next[*http2.RSTStreamFrame](p)
		}
		for i := range uint32(10 * defaultStreams) {
			require.NoError(t, p.WriteData(i%defaultStreams*2+1, false, []byte("late")))
		}
		p.headers(1001, true, get...)
		for { // an error of the test if the connection ends
			f, err := p.ReadFrame()
			require.NoError(t, err)
			require.NotEqual(t, http2.FrameRSTStream, f.Header().Type)
			if f.Header().StreamID == 1001 {
				break
			}
		}
	})
	t.Run("PING with each response", func(t *testing.T) {
		p := rawClient(t, s.addr)
		for i := range uint32(3000) {
			p.headers(2*i+1, true, with(get[:2], ":path: /length", ":authority: h")...)
			require.NoError(t, p.WritePing(false, [8]byte{}))
			next[*http2.MetaHeadersFrame](p)
		}
	})
}
