package httplayer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client
	"golang.org/x/net/http2/hpack"  //nolint:depguard // of the raw client
	"pgregory.net/rapid"
)

// framerClient is a client of HTTP/2 that does what it is told.
type framerClient struct {
	*xhttp2.Framer
	conn  net.Conn
	block bytes.Buffer
	enc   *hpack.Encoder
	t     testing.TB
	deaf  bool // does not answer PING
}

func newFramerClient(t testing.TB, conn net.Conn) *framerClient {
	c := &framerClient{Framer: xhttp2.NewFramer(conn, conn), conn: conn, t: t}
	c.enc = hpack.NewEncoder(&c.block)
	say(conn, h2Preface)
	_ = c.WriteSettings()
	return c
}

func (c *framerClient) open(stream uint32, end bool, fields ...string) {
	c.block.Reset()
	all := append([]string{":method", "POST", ":scheme", "http", ":authority", "a", ":path", "/length"}, fields...)
	for i := 0; i < len(all); i += 2 {
		_ = c.enc.WriteField(hpackField(all[i], all[i+1]))
	}
	_ = c.WriteHeaders(xhttp2.HeadersFrameParam{
		StreamID: stream, BlockFragment: c.block.Bytes(), EndStream: end, EndHeaders: true,
	})
}

func hpackField(name, value string) hpack.HeaderField {
	return hpack.HeaderField{Name: name, Value: value}
}

// event is a frame that says something about streams.
type event struct {
	kind string // "goaway", "ping", "head 1", "end 1", "reset 1"
	last uint32 // of a goaway
	code xhttp2.ErrCode
	ping [8]byte
}

func kindsOf(events []event) (kinds []string) {
	for _, e := range events {
		kinds = append(kinds, e.kind)
	}
	return kinds
}

// until reads, and answers what must be, until stop says so or the connection
// ends.
func (c *framerClient) until(stop func(event) bool) (seen []event) {
	c.t.Helper()
	for {
		f, err := c.ReadFrame()
		if err != nil {
			require.Nil(c.t, stop, "the connection ended early: %v, after %v", err, seen)
			return seen
		}
		var now []event
		id := f.Header().StreamID
		ended := false
		switch f := f.(type) {
		case *xhttp2.SettingsFrame:
			if !f.IsAck() {
				_ = c.WriteSettingsAck()
			}
		case *xhttp2.PingFrame:
			now = append(now, event{kind: "ping", ping: f.Data})
			if !f.IsAck() && !c.deaf {
				_ = c.WritePing(true, f.Data)
			}
		case *xhttp2.GoAwayFrame:
			now = append(now, event{kind: "goaway", last: f.LastStreamID, code: f.ErrCode})
		case *xhttp2.HeadersFrame:
			now = append(now, event{kind: fmt.Sprint("head ", id)})
			ended = f.StreamEnded()
		case *xhttp2.DataFrame:
			ended = f.StreamEnded()
		case *xhttp2.RSTStreamFrame:
			now = append(now, event{kind: fmt.Sprint("reset ", id), code: f.ErrCode})
		}
		if ended {
			now = append(now, event{kind: fmt.Sprint("end ", id)})
		}
		for _, e := range now {
			seen = append(seen, e)
			if stop != nil && stop(e) {
				return seen
			}
		}
	}
}

func is(kind string) func(event) bool {
	return func(e event) bool { return e.kind == kind }
}

// A client is told in two steps: it may have opened streams before it read the
// first, and those are served.
func TestGoAwayInTwoSteps(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 10)
	answer := make(chan struct{})
	s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-answer
		say(w, "hello")
	}), WithDrainTimeout(patience))
	conn, done := callOn(t, t.Context(), s)
	c := newFramerClient(t, conn)
	c.deaf = true
	c.open(1, true)
	<-asked
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, s.Drain(over))
	seen := c.until(is("ping"))
	require.Equal(t, []string{"goaway", "ping"}, kindsOf(seen))
	assert.EqualValues(t, maxStream, seen[0].last)
	assert.Equal(t, xhttp2.ErrCodeNo, seen[0].code)

	// They were on their way.
	c.open(3, true)
	c.open(5, true)
	<-asked
	<-asked
	// And these are, when the client says that it knows.
	c.open(7, true)
	_ = c.WritePing(true, seen[1].ping)
	<-asked
	seen = c.until(is("goaway"))
	assert.EqualValues(t, 7, seen[len(seen)-1].last, "none is lost")
	close(answer)
	kinds := kindsOf(c.until(nil))
	for _, end := range []string{"end 1", "end 3", "end 5", "end 7"} {
		assert.Contains(t, kinds, end)
	}
	require.NoError(t, (<-done).err)
}

// A client that does not answer is given some time.
func TestGoAwayWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	s := NewServer(http.HandlerFunc(shapes), WithDrainTimeout(10*time.Millisecond))
	conn, done := callOn(t, t.Context(), s)
	c := newFramerClient(t, conn)
	c.deaf = true
	c.open(1, true)
	c.until(is("end 1"))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, s.Drain(over))
	seen := c.until(nil)
	require.Equal(t, []string{"goaway", "ping", "goaway"}, kindsOf(seen))
	assert.EqualValues(t, 1, seen[2].last)
	require.NoError(t, (<-done).err)
}

// Whatever the pieces that the frames come in, the notice comes between two, and
// within no field block.
func TestGoAwayKeepsFramesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var text, want bytes.Buffer
		out := xhttp2.NewFramer(&text, nil)
		require.NoError(t, out.WriteSettings())
		for i := range rapid.IntRange(0, 6).Draw(t, "frames") {
			stream := uint32(2*i + 1)
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				require.NoError(t, out.WriteData(stream, true, bytes.Repeat([]byte{7}, rapid.IntRange(0, 50).Draw(t, "data"))))
			case 1:
				more := rapid.IntRange(0, 3).Draw(t, "continuations")
				require.NoError(t, out.WriteHeaders(xhttp2.HeadersFrameParam{
					StreamID: stream, BlockFragment: []byte{0x88}, EndHeaders: more == 0,
				}))
				for ; more > 0; more-- {
					require.NoError(t, out.WriteContinuation(stream, more == 1, []byte{0x88}))
				}
			case 2:
				require.NoError(t, out.WritePing(false, [8]byte{1, 6}))
			case 3:
				require.NoError(t, out.WriteRSTStream(stream, xhttp2.ErrCodeCancel))
			}
		}
		require.NoError(t, out.WriteRSTStream(99, xhttp2.ErrCodeCancel)) // somewhere it must come
		all := text.Bytes()
		want.Write(all)

		s := NewServer(http.NotFoundHandler())
		sink := &sinkConn{}
		c := newAccepted(context.Background(), s, sink)
		defer c.cancel()
		c.h2 = newGoodbye(c)
		when := rapid.IntRange(0, len(all)-1).Draw(t, "when")
		for n := 0; n < len(all); {
			if n >= when && when >= 0 {
				c.h2.tell(goAway(maxStream, 0))
				when = -1
			}
			k := min(len(all)-n, rapid.IntRange(1, 40).Draw(t, "piece"))
			wrote, err := c.Write(all[n : n+k])
			require.NoError(t, err)
			require.Equal(t, k, wrote)
			n += k
		}
		in := xhttp2.NewFramer(io.Discard, bytes.NewReader(sink.Bytes()))
		in.ReadMetaHeaders = nil
		goAways, first := 0, ""
		for {
			f, err := in.ReadFrame()
			if err == io.EOF {
				break
			}
			require.NoError(t, err, "a frame was parted")
			if first == "" {
				first = f.Header().Type.String()
			}
			if _, ok := f.(*xhttp2.GoAwayFrame); ok {
				goAways++
			}
		}
		if when < 0 {
			require.Equal(t, 1, goAways)
		}
		require.Equal(t, "SETTINGS", first)
		rest := bytes.Replace(sink.Bytes(), goAway(maxStream, 0), nil, 1)
		require.Equal(t, want.String(), string(rest))
	})
}

// sinkConn keeps what is written.
type sinkConn struct {
	net.Conn
	bytes.Buffer
}

func (s *sinkConn) Write(p []byte) (int, error)      { return s.Buffer.Write(p) }
func (s *sinkConn) Read([]byte) (int, error)         { return 0, io.EOF }
func (s *sinkConn) SetWriteDeadline(time.Time) error { return nil }
func (s *sinkConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// The scanner of frames finds no end that is none, and survives anything.
func FuzzFrameScan(f *testing.F) {
	f.Add([]byte("\x00\x00\x08\x06\x00\x00\x00\x00\x00goodbye!"), 3)
	f.Add([]byte("\x00\x00\x01\x01\x00\x00\x00\x00\x01\x88\x00\x00\x01\x09\x04\x00\x00\x00\x01\x88"), 1)
	f.Add([]byte("\x00\x00\x0b\x06\x00\x00\x00\x00\x00too long...\x00\x00\x02\x06\x00\x00\x00\x00\x00no"), 4)
	f.Fuzz(func(t *testing.T, text []byte, piece int) {
		piece = max(1, piece%64)
		scan := func(size int) string {
			var s frameScan
			var log strings.Builder
			for rest := text; len(rest) > 0; {
				k := min(size, len(rest))
				s.scan(rest[:k], func(h frameHead, p []byte) { sayf(&log, "%v %x\n", h, p) })
				rest = rest[k:]
			}
			sayf(&log, "%v %v", s.between(), s.begun)
			return log.String()
		}
		require.Equal(t, scan(len(text)+1), scan(piece))
	})
}
