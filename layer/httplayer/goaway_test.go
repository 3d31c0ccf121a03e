package httplayer

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client
	"golang.org/x/net/http2/hpack"  //nolint:depguard // of the raw client
)

// framerClient is a client of HTTP/2 that sends the frames of a test.
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

// event is a received frame that concerns streams.
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

// until reads frames, and acknowledges SETTINGS and PING, until stop returns true or
// the connection ends.
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

// Draining sends two GOAWAYs, because the client may open streams before it reads
// the first one. Those streams are served.
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

	// The client has not read the first GOAWAY.
	c.open(3, true)
	c.open(5, true)
	<-asked
	<-asked
	// This stream precedes the acknowledgement of the PING.
	c.open(7, true)
	_ = c.WritePing(true, seen[1].ping)
	<-asked
	seen = c.until(is("goaway"))
	assert.EqualValues(t, 7, seen[len(seen)-1].last, "the last stream that is served")
	close(answer)
	kinds := kindsOf(c.until(nil))
	for _, end := range []string{"end 1", "end 3", "end 5", "end 7"} {
		assert.Contains(t, kinds, end)
	}
	require.NoError(t, (<-done).err)
}

// The second GOAWAY is sent after the drain timeout if the client does not answer the
// PING.
func TestGoAwayWithoutAcknowledgement(t *testing.T) {
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

const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
