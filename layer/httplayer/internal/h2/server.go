package h2

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// ServerConn is the server side of a connection.
type ServerConn struct {
	conn
	cfg    *message.ServerConfig
	ctx    context.Context //nolint:containedctx // the parent of those of the requests
	life   context.Context //nolint:containedctx // ends the connection
	remote string
	base   http.Request // the template of requests, with TLS

	slot      *sweep.Slot
	blockOpen bool // of the reader: phaseBlock
	sweeps    sweepState
	ticks     atomic.Uint32 // number of Sweeps
	drains    atomic.Bool   // the second GOAWAY is due
	limited   atomic.Int32  // streams in progress whose body has limits

	// With the mu of the connection.
	inPart      bool // copy of blockOpen
	idleWorkers []*worker
	handlers    int
	returned    sync.Cond // handlers is 0
	draining    bool
}

// drainPing is the payload of the PING between the two GOAWAYs.
const drainPing = 0x676f746f77657231

// NewServerConn returns the server side of a connection. Its requests have the
// values of ctx, and the connection ends with ctx. Limits of HTTP/2 that are 0 have
// the defaults: 250 streams, 64 KiB of headers, windows of 256 KiB and 1 MiB.
func NewServerConn(ctx context.Context, nc net.Conn, cfg *message.ServerConfig) *ServerConn {
	c := &ServerConn{cfg: cfg, life: ctx, ctx: reqctx.Detach(ctx), remote: nc.RemoteAddr().String()}
	c.init(nc, newLimits(cfg.MaxStreams, cfg.MaxFrameSize, cfg.MaxHeaderBytes, cfg.StreamWindow, cfg.ConnWindow))
	c.server, c.resets.limit = c, cfg.MaxStreamResets
	c.returned.L = &c.mu
	c.hello(setting{settingMaxConcurrentStreams, uint32(c.maxStreams)}, setting{settingEnableConnectProtocol, 1})
	return c
}

// Serve serves the connection. It returns why it ended, after its handlers have
// returned.
func (c *ServerConn) Serve() error {
	c.slot = c.cfg.Sweeper.Add(c, phasePreface)
	defer c.slot.Remove()
	watch := reqctx.Watch(c.life, c)
	defer watch.Stop()
	c.keepAlive(c.cfg.PingInterval, c.cfg.PingTimeout)
	c.mu.Lock()
	c.kick()
	c.mu.Unlock()
	err := c.readLoop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.handlers > 0 {
		c.returned.Wait()
	}
	c.retireWorkers()
	return err
}

// ContextDone is part of [reqctx.Watcher]: the context of the connection ended.
func (c *ServerConn) ContextDone(cause error) { go c.fail(cause) }

// Close ends the connection and cancels its requests.
func (c *ServerConn) Close() error {
	c.fail(errConnClosed)
	return nil
}

// Drain makes the client open no more streams. The connection ends when all
// streams have ended. A GOAWAY announces it, and a second one has the last stream
// when the client has answered a PING.
func (c *ServerConn) Drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining || c.err != nil {
		return
	}
	c.draining = true
	c.drains.Store(true)
	out := c.output()
	out.goAway(maxStreamID, message.CodeNo, "")
	out.ping(0, drainPing)
	c.kick()
}

// drainAcked is called by the reader and by the sweeper.
func (c *ServerConn) drainAcked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.drains.Swap(false) || c.err != nil {
		return
	}
	c.leaving, c.closing = true, true
	c.output().goAway(c.lastStream, message.CodeNo, "")
	c.kick()
}

// serverStream is all that a request needs. It is not reused, because handlers
// may keep its parts.
type serverStream struct {
	stream
	ctx      requestContext
	req      http.Request
	url      url.URL
	body     body
	out      sender
	expects  bool // a 100 response is due when the body is read
	tooLarge bool // the header list
	slab     [8]string

	// With the mu of the connection.
	begun     bool // the final response
	continued bool // a 100 response was sent

	// Of a body with limits, with mu.
	limited       bool
	got           int64
	pause, waited time.Duration // of Read: since the last bytes, and in all
}

// requestContext is the context of a request.
type requestContext struct {
	reqctx.Context
	s *serverStream
}

// Value is part of [context.Context].
func (x *requestContext) Value(key any) any {
	switch key {
	case http.LocalAddrContextKey:
		return x.s.c.nc.LocalAddr()
	case message.InformerKey:
		return message.Informer(x.s)
	}
	return x.Context.Value(key)
}

// cancel ends the context of the request because of err.
func (s *serverStream) cancel(err error) {
	if reset, ok := errors.AsType[*message.ResetError](err); ok && reset.Remote {
		s.ctx.Cancel(&message.CanceledError{Code: reset.Code})
		return
	}
	s.ctx.Cancel(nil)
}

// headers handles a header block: of a new stream, or trailers.
func (c *ServerConn) headers(id uint32, fields []field, end, tooLarge bool) error {
	if id%2 == 0 {
		return protocolError("stream with an even number")
	}
	if id <= c.lastID {
		return c.trailers(id, fields, end, tooLarge)
	}
	c.lastID = id
	s := &serverStream{tooLarge: tooLarge}
	s.server = s
	s.init(&c.conn, id)
	s.born = c.ticks.Load()
	reason := c.request(s, fields, end)
	if tooLarge {
		reason = ""
	}
	s.ctx.Init(c.ctx, 0, nil)
	s.ctx.s = s
	s.eof, s.gotEnd = end, end
	c.mu.Lock()
	if c.leaving {
		c.mu.Unlock()
		return nil
	}
	c.lastStream = id
	full := c.slots >= c.maxStreams || c.handlers >= 2*c.maxStreams
	switch {
	case full:
		c.queueReset(id, message.CodeRefusedStream)
	case reason == "":
		s.sendWindow = c.peerWindow
		c.streams[id] = &s.stream
		c.slots++
		c.handlers++
		c.phaseLocked()
	}
	c.mu.Unlock()
	switch {
	case full:
		if err := c.glitch(glitchSetting); err != nil {
			return err
		}
		return c.queued()
	case reason != "":
		return malformed(id, reason)
	}
	if s.limited {
		c.limited.Add(1)
	}
	c.found = &s.stream
	c.starting = append(c.starting, s)
	if tooLarge {
		return c.glitch(glitchLarge)
	}
	return nil
}

func (c *ServerConn) trailers(id uint32, fields []field, end, tooLarge bool) error {
	st := c.find(id)
	switch {
	case st == nil && c.wasReset(id):
		return nil
	case st == nil:
		return &ConnError{Code: message.CodeStreamClosed, Reason: "HEADERS on a closed stream"}
	case st.gotEnd:
		return &streamError{id, message.CodeStreamClosed, "HEADERS after the end of the stream"}
	}
	return st.receiveTrailers(fields, end, tooLarge)
}

// receiveTrailers ends the received body.
func (st *stream) receiveTrailers(fields []field, end, tooLarge bool) error {
	if !end || tooLarge {
		return malformed(st.id, "trailers without END_STREAM or too large")
	}
	for i := range fields {
		if kind := fields[i].name.kind; kind != plainName && kind != teName && kind != trailerName {
			return malformed(st.id, "invalid trailer")
		}
	}
	if err := st.count(0, true); err != nil {
		return err
	}
	trailer := makeHeader(fields, st.trailerSlab[:])
	st.mu.Lock()
	st.eof, st.trailer = true, trailer
	st.mu.Unlock()
	st.c.touch(st)
	st.endReceived()
	return nil
}

// worker is a goroutine that serves one stream after the other, so that its
// stack has grown already.
type worker struct{ jobs chan *serverStream }

const maxIdleWorkers = 128 // the sweeper ends those of an idle connection

// dispatch gives each stream to a worker.
func (c *ServerConn) dispatch(streams []*serverStream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range streams {
		var w *worker
		if n := len(c.idleWorkers); n > 0 {
			w = c.idleWorkers[n-1]
			c.idleWorkers[n-1] = nil
			c.idleWorkers = c.idleWorkers[:n-1]
		} else {
			w = &worker{make(chan *serverStream, 1)}
			go c.work(w)
		}
		w.jobs <- s
	}
}

func (c *ServerConn) work(w *worker) {
	for s := range w.jobs {
		c.serve(s)
		c.mu.Lock()
		keep := c.err == nil && len(c.idleWorkers) < maxIdleWorkers
		if keep {
			c.idleWorkers = append(c.idleWorkers, w)
		}
		c.handlerReturned()
		c.mu.Unlock()
		if !keep {
			return
		}
	}
}

// handlerReturned is called with mu held.
func (c *ServerConn) handlerReturned() {
	if c.handlers--; c.handlers == 0 {
		c.returned.Broadcast()
		c.phaseLocked()
		if c.closing {
			c.kick()
		}
	}
}

// retireWorkers ends the idle workers, with mu held.
func (c *ServerConn) retireWorkers() {
	for _, w := range c.idleWorkers {
		close(w.jobs)
	}
	c.idleWorkers = nil
}

// SetReadDeadline is part of [message.Stream].
func (s *serverStream) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	setTimer(&s.readTimer, t, s.readExpired)
	return nil
}

// SetWriteDeadline is part of [message.Stream].
func (s *serverStream) SetWriteDeadline(t time.Time) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	setTimer(&s.writeTimer, t, s.writeExpired)
	return nil
}

func setTimer(timer **time.Timer, t time.Time, expired func()) {
	if *timer != nil {
		(*timer).Stop()
		*timer = nil
	}
	if !t.IsZero() {
		*timer = time.AfterFunc(time.Until(t), expired)
	}
}
