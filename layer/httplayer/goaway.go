package httplayer

import (
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// goodbye is the HTTP/2 of a connection that a Server serves. It follows the
// frames of both directions, to say what net/http does not: that no new streams
// are to come, while it still takes those which are on their way (RFC 9113, 6.8),
// and that a client has taken back too many.
//
//	GOAWAY(2^31-1) PING →                     streams that were on their way ←
//	                                                                PING ack ←
//	net/http's GOAWAY(last stream) →                    the end of all of them
//
// It has its own http.Server, whose Shutdown is the way to net/http's GOAWAY, and
// would close all other connections.
type goodbye struct {
	conn *accepted
	http *http.Server

	in      frameScan // of the client; read's alone
	last    uint32    // stream that the client opened
	heard   bool      // the PING ack was read
	taken   takenBack
	waited  bool          // as who comes again; read's alone
	told    chan struct{} // closed when net/http has dealt with all before the PING ack
	telling sync.Once

	mu      sync.Mutex // held while writing
	out     frameScan  // of net/http; with mu
	notice  []byte     // waits for the end of a frame; with mu
	greeted chan struct{}
	calm    atomic.Bool // the client was told to be
}

const (
	pingFrame         = 0x6
	pingAck           = 0x1
	rstFrame          = 0x3
	headersFrame      = 0x1
	pushFrame         = 0x5
	continuationFrame = 0x9
	endHeaders        = 0x4
	endStream         = 0x1

	goodbyePing     = "goodbye!"
	maxStream       = 1<<31 - 1
	enhanceYourCalm = 0xb
)

func newGoodbye(c *accepted) *goodbye {
	g := &goodbye{conn: c, http: c.server.httpServer(h2Only()), told: make(chan struct{}), greeted: make(chan struct{})}
	g.in.skip = len(h2Preface)
	g.taken.most = int64(c.server.takenBack)
	return g
}

// say brings the connection to its end, without waiting for that. enough is when
// it does not wait for the client any longer.
func (g *goodbye) say(enough <-chan time.Time) {
	select { // before its SETTINGS net/http does not know the connection
	case <-g.greeted:
	case <-g.conn.over:
		return
	}
	notice := append(goAway(maxStream, 0), 0, 0, 8, pingFrame, 0, 0, 0, 0, 0)
	g.tell(append(notice, goodbyePing...))
	select {
	case <-g.told:
	case <-enough:
	case <-g.conn.over:
		return
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = g.http.Shutdown(ended) // begins it, and does not wait
}

// tell writes frames of our own as soon as net/http is between two of its.
func (g *goodbye) tell(frames []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.out.begun && g.out.between() {
		_, _ = g.conn.put(frames)
		return
	}
	g.notice = frames
}

func goAway(last, code uint32) []byte {
	frame := []byte{0, 0, 8, frameGoAway, 0, 0, 0, 0, 0}
	frame = binary.BigEndian.AppendUint32(frame, last)
	return binary.BigEndian.AppendUint32(frame, code)
}

func (g *goodbye) write(p []byte) (n int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.notice != nil && n < len(p) {
		// Up to the end of a frame, and then what is ours.
		k, between := g.out.toEnd(p[n:], g.wrote)
		some, err := g.conn.put(p[n : n+k])
		if n += some; err != nil {
			return n, err
		}
		if between {
			if _, err := g.conn.put(g.notice); err != nil {
				return n, err
			}
			g.notice = nil
		}
	}
	if n == len(p) {
		return n, nil
	}
	some, err := g.conn.put(p[n:])
	g.out.scan(p[n:n+some], g.wrote)
	return n + some, err
}

// wrote looks at a frame that net/http sends.
func (g *goodbye) wrote(f frameHead, payload []byte) {
	switch f.kind {
	case headersFrame:
		if !interim(f, payload) {
			g.taken.answered()
		}
	case rstFrame:
		g.taken.reset()
	case frameSettings:
		select {
		case <-g.greeted:
		default:
			close(g.greeted)
		}
	}
}

func (g *goodbye) read(p []byte) (int, error) {
	if g.heard {
		// net/http reads frame by frame, in one goroutine, and asks for more
		// only when it has dealt with what it has.
		g.telling.Do(func() { close(g.told) })
	}
	if g.taken.hasty() {
		g.hold()
	}
	n, err := g.conn.take(p)
	g.in.scan(p[:n], g.got)
	if g.taken.over() && !g.calm.Swap(true) {
		g.refuse()
	}
	if g.calm.Load() {
		return 0, errCalm
	}
	return n, err
}

// hastyPause is how long a client that takes back much is not read, for each quarter
// of what it may. Its requests cost a processor what those of others do, and are for
// nothing: so they wait where they cost nothing, in the socket, until they are
// so many that it is cut.
const hastyPause = 20 * time.Millisecond

// hold makes a hasty client wait; one whose address was cut before, once for long,
// which gives nothing back to it.
func (g *goodbye) hold() {
	if g.waited || !g.conn.server.cut.has(g.conn.RemoteAddr()) {
		g.pause(hastyPause)
		return
	}
	g.waited = true
	g.pause(cutOffPause)
	g.taken.held()
}

func (g *goodbye) pause(d time.Duration) {
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-g.conn.over:
	}
}

// got looks at a frame of the client.
func (g *goodbye) got(f frameHead, payload []byte) {
	switch {
	case f.kind == headersFrame && f.stream > g.last: // or they are trailers
		g.last = f.stream
		g.taken.opened(f.stream)
	case f.kind == rstFrame:
		g.taken.takenBy(f.stream)
	case f.kind == pingFrame && f.length == len(goodbyePing) && f.flags&pingAck != 0 && string(payload) == goodbyePing:
		g.heard = true
	}
}

var errCalm = errors.New("httplayer: the client took back too many streams")

// refuse tells the client why its connection ends, if it reads.
func (g *goodbye) refuse() {
	g.conn.server.cut.add(g.conn.RemoteAddr())
	_ = g.conn.Conn.SetWriteDeadline(time.Now().Add(time.Second))
	g.tell(goAway(g.last, enhanceYourCalm))
	g.conn.server.log.Debug("connection cut", "client", g.conn.RemoteAddr(), "error", errCalm)
}
