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

	"golang.org/x/net/http/httpguts"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// ServerConn is the server side of a connection. It reads the requests and calls the configured handler
// for each of them, concurrently, until the connection ends.
type ServerConn struct {
	conn
	cfg     *message.ServerConfig
	ctx     context.Context //nolint:containedctx // the parent of those of the requests
	connCtx context.Context //nolint:containedctx // its end closes the connection
	remote  string

	slot  *sweep.Slot
	ticks atomic.Uint32 // number of calls of Sweep

	// The fields below are guarded by mu.

	inPart bool               // a header block or a frame header is not complete; only the reader writes it
	idle   chan *serverStream // passes streams to idle workers; nil without workers
	drain  *time.Timer        // sends the second GOAWAY; nil before Drain

	workers sync.WaitGroup
}

// drainPing is the payload of the PING that Drain sends. Its acknowledgment triggers the
// second GOAWAY.
const drainPing = 0x676f746f77657231

// NewServerConn returns the server side of the connection nc. Request contexts carry the values
// from ctx. The connection ends when ctx ends. HTTP/2 limits of 0 select the defaults: 250
// streams, 256 KiB of headers, and windows of 256 KiB per stream and 1 MiB per connection.
func NewServerConn(ctx context.Context, nc net.Conn, cfg *message.ServerConfig) *ServerConn {
	// connCtx ends the connection. Request contexts come from the other one, which only has its values: a handler's
	// context ends with its stream.
	c := &ServerConn{cfg: cfg, connCtx: ctx, ctx: reqctx.Detach(ctx)}
	if addr := nc.RemoteAddr(); addr != nil {
		c.remote = addr.String()
	}
	c.init(nc, newLimits(cfg.MaxStreams, cfg.MaxFrameSize, cfg.MaxHeaderBytes, cfg.StreamWindow, cfg.ConnWindow))
	// The embedded conn finds the server by this field, and a conn of a client has nil there.
	c.server, c.resets.limit = c, cfg.MaxStreamResets
	c.hello(setting{settingMaxConcurrentStreams, uint32(c.maxStreams)}, setting{settingEnableConnectProtocol, 1})
	return c
}

// Serve serves the connection until it ends. It waits for the handlers and the writer to end, and
// then returns the reason of the end. The reason is a [layer.Error] if the client sent no preface.
func (c *ServerConn) Serve() error {
	c.slot = c.cfg.Sweeper.Add(c, phasePreface)
	defer c.slot.Remove()
	watch := reqctx.Watch(c.connCtx, c)
	defer watch.Stop()
	c.keepAlive(c.cfg.PingInterval, c.cfg.PingTimeout, true) // also while no stream is open
	// Send the SETTINGS that NewServerConn has queued.
	c.mu.Lock()
	c.kick()
	c.mu.Unlock()
	err := c.readLoop()
	c.refuseConn(err)
	c.mu.Lock()
	c.retireWorkers()
	if c.drain != nil {
		c.drain.Stop()
	}
	c.mu.Unlock()
	// The end of the connection has canceled the requests, so their handlers return soon.
	c.workers.Wait()
	c.written.Wait()
	if !c.prefaced {
		return noPreface(err)
	}
	return err
}

// noPreface returns the error of a connection that ended with err before its preface was complete.
func noPreface(err error) error {
	e := &layer.Error{Layer: "server", Reason: "no preface of HTTP/2", Err: err}
	if err == errHeaderTimeout { //nolint:errorlint // set by Sweep
		e.Kind = layer.ErrTimeout
	}
	return e
}

// ContextDone implements [reqctx.Watcher]. It closes the connection when its context ends.
func (c *ServerConn) ContextDone(cause error) { go c.fail(cause) }

// Drain makes the client open no more streams. It sends a GOAWAY and a PING. When the
// client acknowledges the PING, or after DrainTimeout, a second GOAWAY specifies the last
// accepted stream. The connection closes after its last stream has ended.
func (c *ServerConn) Drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	// c.drain is not nil from the first call on.
	if c.drain != nil || c.err != nil {
		return
	}
	// The first GOAWAY names the largest ID, so that it rejects no stream which is under way to the server.
	c.queueGoAway(maxStreamID, message.CodeNo, "")
	c.queuePing(0, drainPing)
	c.kick()
	c.drain = time.AfterFunc(c.cfg.DrainTimeout, c.endDrain)
}

// endDrain sends the second GOAWAY of a drain, which names the last accepted stream. It does so
// once, though both the client's answer and the timer call it.
func (c *ServerConn) endDrain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drain == nil || c.closing || c.err != nil {
		return
	}
	c.closing = true
	c.queueGoAway(c.lastStream, message.CodeNo, "")
	c.kick()
}

// serverStream is the state of one request and its response, and the request's context, in one
// allocation. It is not reused, because a handler may keep parts of it.
type serverStream struct {
	stream
	reqctx.Context
	req      http.Request
	url      url.URL
	out      sender
	expects  atomic.Bool       // the client waits for 100 Continue
	refusal  *message.Refusal  // of a request that gets a response but is not served; nil for others
	reported *message.Reported // nil if requests are not reported
	slab     [8]string
	waits    sweep.Wait
	accept   string // expected Sec-WebSocket-Accept; "" unless the request is a WebSocket
	started  bool   // the final response has begun; guarded by the mu of the connection
}

// Value returns the local address for http.LocalAddrContextKey, and s for message.InformerKey. All
// other values come from the connection's context.
func (s *serverStream) Value(key any) any {
	switch key {
	case http.LocalAddrContextKey:
		return s.c.nc.LocalAddr()
	case message.InformerKey:
		return s
	}
	return s.Context.Value(key)
}

// cancel cancels the request context because the stream ended with err. The cause is a
// [message.CanceledError], unless this side ended the stream or the connection. The cause of a malformed
// request is err.
func (s *serverStream) cancel(err error) {
	if reset, ok := errors.AsType[*message.ResetError](err); ok && reset.Remote {
		s.Context.Cancel(&message.CanceledError{Code: reset.Code})
		return
	}
	if malformed, ok := errors.AsType[*message.MalformedError](err); ok {
		s.Context.Cancel(malformed)
		return
	}
	// If this side has ended the connection, the client has not left.
	violation, isViolation := errors.AsType[*ConnError](err)
	if isViolation && !violation.Remote || s.c.server.connCtx.Err() != nil {
		s.Context.Cancel(nil)
		return
	}
	s.Context.Cancel(new(message.CanceledError))
}

// headers handles a header block with the ID of no open stream. A new ID opens a stream. end
// reports END_STREAM. tooLarge reports that the block exceeds the size limit.
func (c *ServerConn) headers(id uint32, fields []field, end, tooLarge bool) error {
	switch {
	case id%2 == 0:
		return protocolError("stream with an even number")
	// A stream that was never opened: the usual case.
	case c.unopened(id):
	// The client may not know yet that this stream was reset.
	case c.hasReset():
		return c.glitch(glitchControl)
	default:
		return connError(message.CodeStreamClosed, "HEADERS on a closed stream")
	}
	s, reported := message.NewStream[serverStream](c.cfg)
	s.server = s
	s.reported = reported
	s.init(&c.conn, id)
	// A malformed request is not served, but its ID is used up: the fields were decoded for the HPACK
	// table.
	s.born = c.ticks.Load()
	var h requestHead
	reason := c.request(s, &h, fields, end)
	switch {
	case tooLarge:
		s.refusal, reason = c.refusal(http.StatusRequestHeaderFieldsTooLarge, errLongList, &h), ""
	case reason == badAuthority:
		s.refusal, reason = c.refusal(http.StatusBadRequest, errBadAuthority, &h), ""
	}
	s.Init(c.ctx, 0, nil) // no time limit
	s.eof, s.gotEnd = end, end
	c.mu.Lock()
	c.nextID = id + 2
	if c.closing {
		// After the second GOAWAY the client knows that this stream is not processed.
		c.mu.Unlock()
		return nil
	}
	c.lastStream = id
	// Reasons for the limit: many streams reset while their handlers run, and responses that nobody
	// reads.
	full := len(c.streams) >= c.maxStreams || c.pending >= 2*c.maxStreams || c.queuedBytes() > maxQueuedOutput/2
	switch {
	case full:
		c.queueReset(id, message.CodeRefusedStream)
	case reason == "":
		s.sendWindow = c.peerWindow
		c.streams[id] = &s.stream
		c.pending++
		c.phaseLocked()
	}
	c.mu.Unlock()
	switch {
	case full:
		return c.glitch(glitchSetting)
	case reason != "":
		c.refuse(c.refusal(http.StatusBadRequest, &message.ResetError{Code: message.CodeProtocol, Reason: reason}, &h))
		return malformed(id, reason)
	}
	c.found = &s.stream
	c.starting = append(c.starting, s)
	if tooLarge {
		return c.glitch(glitchLarge)
	}
	return nil
}

// refusal returns the Refusal of a request with the pseudo-header fields h because of err.
func (c *ServerConn) refusal(status int, err error, h *requestHead) *message.Refusal {
	return &message.Refusal{
		Client: c.remote, Status: status, Err: err, Proto: "HTTP/2.0", Method: h.method, Host: h.authority, Target: h.path,
	}
}

// refuse reports a refused request that gets no response, by ServerConfig.Refuse.
func (c *ServerConn) refuse(r *message.Refusal) { c.cfg.Refuse(c.connCtx, *r, 0) }

// refuseConn reports that the connection ended with err, if err is an error that this side detected.
func (c *ServerConn) refuseConn(err error) {
	violation, ok := errors.AsType[*ConnError](err)
	switch {
	case ok && !violation.Remote:
		c.refuse(c.refusal(http.StatusBadRequest, err, &requestHead{}))
	case err == errHeaderTimeout && c.inPart: //nolint:errorlint // set by Sweep
		c.refuse(c.refusal(http.StatusRequestTimeout, err, &requestHead{}))
	}
}

// receiveTrailers stores the trailers of a received body and ends the body. Like net/http, a server
// refuses trailers that only make sense in headers, such as Authorization.
func (st *stream) receiveTrailers(fields []field, end, tooLarge bool) error {
	if !end || tooLarge {
		return malformed(st.id, "trailers without END_STREAM or too large")
	}
	for i := range fields {
		n := fields[i].name
		allowed := n.kind == plainName || n.kind == teName || n.kind == trailerName
		if !allowed || st.server != nil && !httpguts.ValidTrailerHeader(n.canonical) {
			return malformed(st.id, "invalid trailer "+quoted(n.lower))
		}
	}
	// The end of the body may come too early for its content-length.
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

// dispatch passes each stream to an idle worker or to a new one. Workers are reused, because a new
// goroutine's stack would have to grow first.
func (c *ServerConn) dispatch(streams []*serverStream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle == nil {
		c.idle = make(chan *serverStream)
	}
	idle := c.idle
	for _, s := range streams {
		select {
		case idle <- s:
		// No worker waits: serve the stream on a new one.
		default:
			c.workers.Go(func() { c.work(s, idle) })
		}
	}
}

// work serves s, and then the streams from idle until retireWorkers closes it.
func (c *ServerConn) work(s *serverStream, idle <-chan *serverStream) {
	for open := true; open; s, open = <-idle {
		c.serve(s)
	}
}

// retireWorkers ends the idle workers. The caller holds mu.
func (c *ServerConn) retireWorkers() {
	if c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}
