package h2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// ClientConfig is the configuration of the connections of an endpoint. The zero
// value has the defaults.
type ClientConfig struct {
	MaxHeaderBytes int // of a response
	StreamWindow   int
	ConnWindow     int
	MaxFrameSize   int
	Secure         bool // the scheme is https, unless the request specifies one

	// A server that sends nothing for PingInterval while there are streams is
	// sent a PING, and the connection ends after PingTimeout. 0 is never.
	PingInterval time.Duration
	PingTimeout  time.Duration

	// Changed is called without locks when a method of the connection may return
	// another value than before: on SETTINGS, on GOAWAY, at the end, and when a
	// full connection has room. It must not block.
	Changed func(c *ClientConn)
}

// ClientConn is the client side of a connection.
type ClientConn struct {
	conn
	cfg      *ClientConfig
	settledC chan struct{}
	done     chan struct{}
	alive    keepalive
	timer    *time.Timer // for alive, with the mu of the connection
	goAwayOf *ConnError  // the last GOAWAY with an error, with the mu of the connection
}

const (
	unsettledStreams = 100  // limit before the first SETTINGS
	unlimitedStreams = 1000 // and if SETTINGS do not have one
)

// NewClientConn returns the client side of a connection, and starts its
// goroutines.
func NewClientConn(nc net.Conn, cfg *ClientConfig) *ClientConn {
	c := &ClientConn{cfg: cfg, settledC: make(chan struct{}), done: make(chan struct{})}
	c.init(nc, makeLimits(0, cfg.MaxFrameSize, cfg.MaxHeaderBytes, cfg.StreamWindow, cfg.ConnWindow, 0))
	c.client, c.prefaced = c, true
	c.nextID, c.peerStreams = 1, unlimitedStreams
	out := c.output()
	out.b = append(out.b, preface...)
	c.hello(setting{settingEnablePush, 0})
	go c.writeLoop(c.wake)
	c.mu.Lock()
	if cfg.PingInterval > 0 {
		c.timer = time.AfterFunc(c.pingPeriod(), c.checkAlive)
	}
	c.kick()
	c.mu.Unlock()
	go func() {
		_ = c.readLoop()
		if !c.settled {
			close(c.settledC)
		}
		close(c.done)
		c.mu.Lock()
		setTimer(&c.timer, time.Time{}, nil)
		c.mu.Unlock()
	}()
	return c
}

// Settled returns a channel that is closed when the first SETTINGS of the server
// have arrived or the connection has ended.
func (c *ClientConn) Settled() <-chan struct{} { return c.settledC }

// Done returns a channel that is closed when the connection has ended.
func (c *ClientConn) Done() <-chan struct{} { return c.done }

// Err returns why the connection cannot be used: it has ended, or the server has
// sent a GOAWAY with an error.
func (c *ClientConn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.goAwayOf != nil {
		return c.goAwayOf
	}
	return c.err
}

// Usable reports whether the connection accepts requests, now or when a stream
// has ended.
func (c *ClientConn) Usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.usable()
}

func (c *ClientConn) usable() bool {
	return c.err == nil && !c.leaving && c.nextID <= maxStreamID-2*unlimitedStreams
}

// Active returns the number of streams in progress and of reserved ones.
func (c *ClientConn) Active() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slots
}

// Limit returns how many streams the server allows.
func (c *ClientConn) Limit() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limit()
}

func (c *ClientConn) limit() int {
	if c.greeted {
		return c.peerStreams
	}
	return unsettledStreams
}

// Reserve takes a slot for one RoundTrip. It returns false if there is none.
func (c *ClientConn) Reserve() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.usable() || c.slots >= c.limit() {
		return false
	}
	c.slots++
	return true
}

// Release returns a slot that is not used.
func (c *ClientConn) Release() {
	c.mu.Lock()
	c.freeSlot()
	c.unlock()
}

// Drain accepts no more requests. The connection ends after the last stream.
func (c *ClientConn) Drain() {
	c.mu.Lock()
	defer c.unlock()
	if c.closing || c.err != nil {
		return
	}
	c.leaving, c.closing, c.changed = true, true, true
	c.output().goAway(0, message.CodeNo, "")
	c.kick()
}

// Close ends the connection and its streams.
func (c *ClientConn) Close() error {
	c.fail(errConnClosed)
	return nil
}

// goAway handles a GOAWAY: the server has not processed streams above last.
func (c *ClientConn) goAway(last, code uint32, debug []byte) error {
	if err := c.glitch(glitchControl); err != nil {
		return err
	}
	var refused []*stream
	c.mu.Lock()
	c.leaving, c.closing, c.changed = true, true, true
	if code != message.CodeNo {
		c.goAwayOf = &ConnError{Code: code, Remote: true, Reason: string(debug[:min(len(debug), 128)])}
	}
	for id, st := range c.streams {
		if id > last {
			refused = append(refused, st)
		}
	}
	c.closeIfQuiet()
	c.unlock()
	for _, st := range refused {
		st.end(&message.ResetError{Code: message.CodeRefusedStream, Remote: true})
	}
	return nil
}

func (c *ClientConn) pingPeriod() time.Duration {
	timeout := c.cfg.PingTimeout
	if timeout <= 0 {
		timeout = defaultPingTimeout
	}
	const checks = 4 // per interval
	return max(min(c.cfg.PingInterval, timeout)/checks, time.Millisecond)
}

// checkAlive is called by the timer.
func (c *ClientConn) checkAlive() {
	c.mu.Lock()
	active := len(c.streams) > 0
	c.mu.Unlock()
	if active {
		c.alive.check(&c.conn, c.pingPeriod(), c.cfg.PingInterval, c.cfg.PingTimeout)
	} else {
		c.alive = keepalive{reads: c.reads.Load()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil && c.err == nil {
		c.timer.Reset(c.pingPeriod())
	}
}

// clientStream is all that a response needs. It is not reused, because the
// caller may keep its parts.
type clientStream struct {
	stream
	req  *http.Request
	rsp  http.Response
	body body
	out  sender
	slab [8]string

	upload  atomic.Uint32 // state of the request body
	connect bool          // the method is CONNECT
	proceed chan struct{} // closed when the body may be sent, or never will be; nil if it was not awaited
	once    sync.Once     // for proceed

	informed int  // of the reader: number of 1xx responses
	final    bool // of the reader: the final response has arrived
	declined bool // with the mu of the connection: it is an error or a redirect

	// With mu.
	informs  []inform // to be passed on
	watch    reqctx.Registration
	watches  bool
	canceled bool // by the context
}

type inform struct {
	status int
	header http.Header
}

// States of a request body.
const (
	uploadNone = iota
	uploadRuns // on a goroutine
	uploadClosed
)

const (
	maxInforms      = 5
	continueTimeout = time.Second
)

// RoundTrip sends a request and returns the headers of its response. It uses a
// reserved slot, which is free when the stream has ended. The stream is reset
// when the context of the request ends before the body of the response was
// closed.
func (c *ClientConn) RoundTrip(req *http.Request) (*http.Response, error) {
	s := &clientStream{req: req}
	s.client = s
	s.connect = req.Method == http.MethodConnect
	head, err := c.requestHead(req)
	if err != nil {
		c.Release()
		closeBody(req)
		return nil, err
	}
	if err := c.notSent(); err != nil {
		c.Release()
		return nil, err
	}
	s.init(&c.conn, 0)
	s.body.st = &s.stream
	hasBody := req.Body != nil && req.Body != http.NoBody && !s.connect
	expects := false
	if hasBody {
		s.out = sender{st: &s.stream, body: req.Body, trailer: &req.Trailer, left: head.length, announces: len(req.Trailer) > 0}
		if expect := req.Header["Expect"]; len(expect) > 0 && strings.EqualFold(expect[0], "100-continue") {
			expects = true
			s.proceed = make(chan struct{})
		} else if err := s.out.fill(false); err != nil {
			s.out.buf.release()
			c.Release()
			closeBody(req)
			return nil, err
		}
	}
	if err := c.open(s, head, hasBody); err != nil {
		s.out.buf.release()
		c.Release()
		if s.out.buf != nil || s.out.eof {
			closeBody(req)
		}
		return nil, err
	}
	switch {
	case hasBody && (!s.out.eof || s.out.buf != nil):
		s.upload.Store(uploadRuns)
		go s.send(expects)
	case !s.connect:
		closeBody(req)
	}
	return s.await()
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// notSent returns an error if no request can be sent.
func (c *ClientConn) notSent() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.notSentLocked()
}

func (c *ClientConn) notSentLocked() error {
	switch {
	case c.err != nil:
		return fmt.Errorf("%w: %w", message.ErrNotSent, c.err)
	case c.leaving:
		return fmt.Errorf("%w: the HTTP/2 connection is draining", message.ErrNotSent)
	}
	return nil
}

// open queues the headers and what was read of the body.
func (c *ClientConn) open(s *clientStream, head requestHead, hasBody bool) error {
	c.mu.Lock()
	defer c.unlock()
	if err := c.notSentLocked(); err != nil {
		return err
	}
	if head.protocol != "" && !c.peerConnect {
		return &message.RequestError{Reason: "the server does not support extended CONNECT"}
	}
	s.id = c.nextID
	c.nextID += 2
	s.sendWindow = c.peerWindow
	c.streams[s.id] = &s.stream
	out, from := c.beginBlock()
	out.b = c.enc.request(out.b, &head)
	out.b = c.enc.header(out.b, s.req.Header)
	if head.length > 0 || head.length == 0 && head.sendsZero {
		out.b = c.enc.field(out.b, nameLength, "", strconv.FormatInt(head.length, 10))
	}
	if s.out.announces && len(s.req.Header["Trailer"]) == 0 {
		out.b = c.enc.trailer(out.b, s.req.Trailer)
	}
	end := !hasBody && !s.connect || hasBody && s.out.eof && s.out.buf == nil && !hasTrailers(s.req.Trailer)
	c.endBlock(from, s.id, end)
	switch {
	case end:
		s.endSent()
	case hasBody && (s.out.buf != nil || s.out.eof):
		s.out.queue()
	}
	c.kick()
	return nil
}

// request appends the pseudo-header fields.
func (e *encoder) request(b []byte, h *requestHead) []byte {
	switch h.method {
	case http.MethodGet:
		b = append(b, 0x82)
	case http.MethodPost:
		b = append(b, 0x83)
	default:
		b = e.field(b, nameMethod, "", h.method)
	}
	switch h.scheme {
	case "":
	case "http":
		b = append(b, 0x86)
	default:
		b = append(b, 0x87)
	}
	if h.path != "" {
		b = e.field(b, namePath, "", h.path)
	}
	if h.authority != "" {
		b = e.field(b, nameAuthority, "", h.authority)
	}
	if h.protocol != "" {
		b = e.field(b, nameProtocol, "", h.protocol)
	}
	return b
}

// requestHead returns the pseudo-header fields and the length of a request, or a
// [message.RequestError].
func (c *ClientConn) requestHead(req *http.Request) (requestHead, error) {
	h := requestHead{method: req.Method, authority: req.Host}
	if h.method == "" {
		h.method = http.MethodGet
	}
	h.seen = seenMethod | seenAuthority
	if req.URL == nil {
		return h, &message.RequestError{Reason: "no URL"}
	}
	if h.authority == "" {
		h.authority = req.URL.Host
	}
	if protocol := req.Header[":protocol"]; len(protocol) > 0 {
		h.protocol = protocol[0]
		h.seen |= seenProtocol
	}
	if h.method != http.MethodConnect || h.protocol != "" {
		h.seen |= seenPath | seenScheme
		h.path = requestPath(req)
		switch {
		case req.URL.Scheme == "http" || req.URL.Scheme == "https":
			h.scheme = req.URL.Scheme
		case c.cfg.Secure:
			h.scheme = "https"
		default:
			h.scheme = "http"
		}
	}
	reason := h.check()
	if reason == "" {
		reason = validHeader(req.Header)
	}
	if reason == "" {
		reason = h.setLength(req)
	}
	if reason != "" {
		return h, &message.RequestError{Reason: reason}
	}
	return h, nil
}

// requestPath returns the :path of a request.
func requestPath(req *http.Request) string {
	u := req.URL
	if u.Path == "*" && req.Method == http.MethodOptions {
		return "*"
	}
	// The URL of a request that was not edited has the target as it was received.
	if raw := req.RequestURI; strings.HasPrefix(raw, "/") && u.RawPath == "" && u.Opaque == "" {
		path, query, asks := strings.Cut(raw, "?")
		if path == u.Path && query == u.RawQuery && asks == (u.RawQuery != "" || u.ForceQuery) &&
			message.All(path, message.PathByte) {
			return raw
		}
	}
	path := u.EscapedPath()
	if u.Opaque != "" {
		path = u.RequestURI()
		if i := strings.IndexByte(strings.TrimPrefix(path, "//"), '/'); strings.HasPrefix(path, "//") && i >= 0 {
			path = path[i+2:]
		}
		return path
	}
	if path == "" {
		path = "/"
	}
	if u.RawQuery != "" || u.ForceQuery {
		path += "?" + u.RawQuery
	}
	return path
}

// setLength determines the content-length. It returns why it is invalid, or "".
func (h *requestHead) setLength(req *http.Request) string {
	h.length = req.ContentLength
	switch {
	case h.method == http.MethodConnect:
		h.length = -1
	case req.Body == nil || req.Body == http.NoBody:
		if h.length > 0 {
			return "ContentLength without a Body"
		}
		h.length = 0
		h.sendsZero = h.method == http.MethodPost || h.method == http.MethodPut || h.method == http.MethodPatch ||
			len(req.Header["Content-Length"]) > 0
	case h.length <= 0:
		h.length = -1
	}
	return ""
}

// send sends the request body on its own goroutine, and closes it.
func (s *clientStream) send(expects bool) {
	if expects && !s.awaitContinue() {
		s.closeUpload()
		return
	}
	_ = s.out.run()
	s.closeUpload()
}

// awaitContinue waits for a 100 response. It reports whether the body is sent.
func (s *clientStream) awaitContinue() bool {
	timer := time.NewTimer(continueTimeout)
	defer timer.Stop()
	select {
	case <-s.proceed:
	case <-timer.C:
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return !s.declined && s.failure() == nil
}

// closeUpload closes the request body, if it is not closed.
func (s *clientStream) closeUpload() {
	if s.upload.CompareAndSwap(uploadRuns, uploadClosed) {
		_ = s.req.Body.Close()
	}
}

// cutRequestBody closes a request body that is being sent, because the stream
// has ended. It does not wait, because Close of any body may.
func (s *clientStream) cutRequestBody() {
	if s.upload.CompareAndSwap(uploadRuns, uploadClosed) {
		go s.req.Body.Close() //nolint:errcheck // the request has ended
	}
	s.startBody()
}

// ContextDone is part of [reqctx.Watcher]: the context of the request ended.
func (s *clientStream) ContextDone(cause error) {
	code := message.CodeCancel
	if canceled, ok := errors.AsType[*message.CanceledError](cause); ok && canceled.Code != message.CodeNo {
		code = canceled.Code
	}
	s.mu.Lock()
	s.canceled = true
	s.mu.Unlock()
	s.reset(code, cause)
}

// unwatch ends the registration with the context of the request.
func (s *clientStream) unwatch() {
	s.mu.Lock()
	watch, watches := s.watch, s.watches
	s.watch, s.watches = reqctx.Registration{}, false
	s.mu.Unlock()
	if watches {
		watch.Stop()
	}
}

// startBody lets a request body that waits for a 100 response be sent.
func (s *clientStream) startBody() {
	if s.proceed != nil {
		s.once.Do(func() { close(s.proceed) })
	}
}

// await waits for the headers of the final response.
func (s *clientStream) await() (*http.Response, error) {
	ctx := s.req.Context()
	watch := reqctx.Watch(ctx, s)
	s.mu.Lock()
	s.watch, s.watches = watch, true
	for {
		for len(s.informs) > 0 {
			next := s.informs[0]
			s.informs = s.informs[1:]
			s.mu.Unlock()
			if err := message.Inform(ctx, next.status, next.header); err != nil {
				s.reset(message.CodeCancel, err)
			}
			s.mu.Lock()
		}
		if s.ready || s.receiveErr != nil {
			break
		}
		s.readable.Wait()
	}
	err := s.receiveErr
	if s.ready && !s.canceled {
		err = nil
	}
	s.mu.Unlock()
	if err != nil {
		s.unwatch()
		s.discard()
		return nil, err
	}
	s.rsp.Request = s.req
	if s.rsp.Body == http.NoBody {
		s.unwatch()
	}
	return &s.rsp, nil
}

// headers handles a header block: of a response, or trailers.
func (c *ClientConn) headers(id uint32, fields []field, end, tooLarge bool) error {
	if c.unopened(id) {
		return protocolError("HEADERS on an idle stream")
	}
	st := c.find(id)
	if st == nil {
		return nil
	}
	s := st.client
	switch {
	case st.gotEnd:
		return &streamError{id, message.CodeStreamClosed, "HEADERS after the end of the stream"}
	case s.final:
		return st.receiveTrailers(fields, end, tooLarge)
	case tooLarge:
		return malformed(id, "response headers too large")
	}
	status, length, reason := responseHead(fields)
	if reason != "" {
		return malformed(id, reason)
	}
	if status < 200 {
		return s.receiveInform(status, fields[1:], end)
	}
	noBody := s.req.Method == http.MethodHead || !message.BodyAllowed(status)
	switch {
	case noBody:
		st.left = 0
	case end && length > 0:
		return malformed(id, "body and content-length differ")
	default:
		st.left = length
	}
	c.mu.Lock()
	s.final, s.declined = true, status >= 300
	complete := end && s.sentEnd
	c.mu.Unlock()
	s.makeResponse(status, length, fields[1:], end, complete)
	s.startBody()
	c.answered.Add(1)
	st.mu.Lock()
	st.ready, st.eof = true, end
	st.mu.Unlock()
	c.touch(st)
	if end {
		st.endReceived()
	}
	return nil
}

// responseHead checks the fields of a response. It returns its status and
// content-length, which is -1 if there is none, or why it is malformed.
func responseHead(fields []field) (status int, length int64, reason string) {
	if len(fields) == 0 || fields[0].name != nameStatus || len(fields[0].value) != 3 {
		return 0, 0, "no valid :status"
	}
	status, err := strconv.Atoi(fields[0].value)
	if err != nil || status < 100 || status == http.StatusSwitchingProtocols {
		return 0, 0, "invalid :status " + quoted(fields[0].value)
	}
	length = -1
	for i := range fields[1:] {
		f := &fields[i+1]
		switch f.name.kind {
		case pseudoName, connectionName, invalidName:
			return 0, 0, "field that is not allowed: " + quoted(f.name.lower)
		case lengthName:
			if length >= 0 {
				return 0, 0, "two content-length fields"
			}
			if length = message.ContentLength([]string{f.value}); length < 0 {
				return 0, 0, "invalid content-length"
			}
		}
	}
	return status, length, ""
}

// makeResponse makes the response. The body of one that is complete before the
// request, too, has to be closed.
func (s *clientStream) makeResponse(status int, length int64, fields []field, end, complete bool) {
	r := &s.rsp
	r.Proto, r.ProtoMajor = "HTTP/2.0", 2
	r.Status, r.StatusCode = statusLine(status), status
	r.ContentLength = length
	r.Header = makeHeader(fields, s.slab[:])
	r.Body = &s.body
	if end {
		if complete {
			r.Body = http.NoBody
		}
		if length < 0 && s.req.Method != http.MethodHead {
			r.ContentLength = 0
		}
		return
	}
	r.Trailer = announced(r.Header)
	if s.connect && status < 300 {
		r.ContentLength = -1
		r.Body = &tunnelBody{body{&s.stream}}
	}
}

// statusLines avoids the allocation of usual values.
var statusLines = func() (lines [600]string) {
	for i := 200; i < len(lines); i++ {
		lines[i] = statusCodes[i] + " " + http.StatusText(i)
	}
	return lines
}()

func statusLine(status int) string {
	if status < len(statusLines) {
		return statusLines[status]
	}
	return statusCodes[status] + " " + http.StatusText(status)
}

// receiveInform keeps a 1xx response for RoundTrip, which passes it on. A 100
// response starts the request body instead.
func (s *clientStream) receiveInform(status int, fields []field, end bool) error {
	if end {
		return malformed(s.id, "1xx response with END_STREAM")
	}
	if status == http.StatusContinue {
		s.startBody()
		return s.c.glitch(glitchControl)
	}
	if s.informed++; s.informed > maxInforms {
		return malformed(s.id, "too many 1xx responses")
	}
	next := inform{status, makeHeader(fields, nil)}
	s.mu.Lock()
	s.informs = append(s.informs, next)
	s.mu.Unlock()
	s.c.touch(&s.stream)
	return nil
}

// tunnelBody is the body of a response to CONNECT. Write sends to the server.
type tunnelBody struct{ body }

var _ io.ReadWriteCloser = (*tunnelBody)(nil)

// Write is part of [io.Writer].
func (b *tunnelBody) Write(p []byte) (int, error) {
	n, err := b.st.send(p)
	if err == nil {
		b.st.c.mu.Lock()
		b.st.c.kick()
		b.st.c.mu.Unlock()
	}
	return n, err
}

// CloseWrite ends the direction to the server.
func (b *tunnelBody) CloseWrite() error { return b.st.finish(nil) }

var _ reqctx.Watcher = (*clientStream)(nil)

var _ context.Context = (*requestContext)(nil)
