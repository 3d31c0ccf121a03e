package exchangetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing/synctest"
	"time"
)

// link is a connection between the model's client and server.
type link struct {
	Conn
	mayEnd bool      // the connection was drained or lost
	last   *exchange // the latest exchange on the connection; nil before the first one
}

// incomplete reports whether the last exchange may be incomplete.
func (l *link) incomplete() bool { return l.last != nil && (l.last.fault || l.last.cut) }

// exchange is one request with its response.
type exchange struct {
	link             *link
	spoiled          bool    // the previous exchange may have ended the connection
	upload, download *body   // bodies given to the client and the server
	in, out          *reader // bodies received by the server and the client; nil before
	expects          bool    // with Expect: 100-continue
	cancel           context.CancelCauseFunc

	answer   chan answer
	answered bool  // an answer was sent to the server
	given    bool  // the server holds the response body
	cause    error // why the server's context ended before a response

	done bool // RoundTrip has returned
	err  error

	fault bool   // the exchange may fail
	cut   bool   // the server may not receive the whole request
	code  uint32 // expected code at the client or the server; 0 if unknown
}

// answer is what the server returns for one request: a response or an error.
type answer struct {
	rsp *http.Response
	err error
}

// model makes the steps on the engine, and knows what may happen in each exchange.
type model struct {
	engine *Engine
	links  []*link
	conn   *link // connection for new exchanges

	mu        sync.Mutex // guards the fields below; the engine is called without it, except to end or close something
	exchanges []*exchange
}

const large = 300_000 // size of a body that is larger than all windows

// run makes the steps, completes all exchanges, and makes one more exchange. It returns the rule that
// was broken, or "".
func (m *model) run(steps []step) (failure string) {
	defer m.end()
	m.connect()
	for _, s := range steps {
		if failure = m.step(s); failure != "" {
			return failure
		}
	}
	if failure = m.finish(); failure != "" {
		return failure
	}
	for _, e := range m.exchanges {
		e.cancel(nil) // without an effect on the connection
	}
	m.settle()
	if failure = m.begin(step{Up: large, Down: large}); failure != "" {
		return failure
	}
	resets := m.conn.Resets()
	switch failure = m.finish(); {
	case failure != "":
		return "last exchange: " + failure
	case m.conn.Resets() > resets:
		return "a stream was reset after a complete exchange"
	}
	return ""
}

// end closes everything, so that no goroutine remains after a failure.
func (m *model) end() {
	m.settle()
	m.mu.Lock()
	for _, e := range m.exchanges {
		// Every goroutine that waits for a body or a context now ends.
		e.cancel(nil)
		e.upload.fail(errBody)
		e.download.fail(errBody)
		if e.out != nil {
			_ = e.out.src.Close()
		}
	}
	m.mu.Unlock()
	for _, l := range m.links {
		l.Close()
	}
}

// connect makes a connection, which new exchanges use from now on.
func (m *model) connect() {
	m.conn = &link{Conn: m.engine.Connect(m.serve)}
	m.links = append(m.links, m.conn)
	synctest.Wait()
}

// settle waits until nothing happens without a further step. It also waits for a Read that may hold
// a lock, because time does not pass in a bubble while a goroutine waits for a lock.
func (m *model) settle() {
	synctest.Wait()
	time.Sleep(m.engine.Pause)
	synctest.Wait()
}

// serve is the server's handler. It finds the exchange by the request header Id, and returns the
// response or the error that a later step sends to e.answer. If the request's context ends first, serve
// returns its cause.
func (m *model) serve(req *http.Request) (*http.Response, error) {
	id, err := strconv.Atoi(req.Header.Get("Id"))
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	e := m.exchanges[id]
	e.in = &reader{mu: &m.mu, src: req.Body, sent: e.upload}
	m.mu.Unlock()
	// Reads of the response body fail after the request's context has ended.
	context.AfterFunc(req.Context(), func() { e.download.fail(errBody) })
	var a answer
	select {
	case a = <-e.answer:
	case <-req.Context().Done():
		a.err = context.Cause(req.Context())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// Without an answer, the context has ended first, and the server returns its cause.
	if e.given = a.rsp != nil; !e.answered {
		e.cause = a.err
	}
	return a.rsp, a.err
}

// begin starts an exchange, if the connection permits it. It replaces a connection that has
// ended.
func (m *model) begin(s step) (failure string) {
	if m.conn.Ended() {
		m.connect()
	}
	// The engine may allow no further exchange now; then the step does nothing.
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.conn.Acquire() {
		return ""
	}
	if last := m.conn.last; m.engine.Serial && last != nil && (!last.upload.complete() || !last.download.complete()) {
		return "the connection is reusable although an exchange is not complete"
	}
	id := len(m.exchanges)
	ctx, cancel := context.WithCancelCause(context.Background())
	e := &exchange{link: m.conn, upload: newBody(2*id, s.Up), download: newBody(2*id+1, s.Down), expects: s.Expects, cancel: cancel}
	e.answer = make(chan answer, 1)
	// After an incomplete exchange, a serial engine may close the connection, so this exchange may not be sent.
	e.spoiled = m.engine.Serial && e.link.incomplete()
	e.link.last = e
	m.exchanges = append(m.exchanges, e)
	var body io.ReadCloser = e.upload
	if s.Pending {
		body = pendingBody{e.upload}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://a/", body)
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Id", strconv.Itoa(id))
	if s.Expects {
		req.Header.Set("Expect", "100-continue")
	}
	if req.ContentLength = -1; s.Known {
		req.ContentLength = int64(s.Up)
	}
	// RoundTrip may wait for later steps.
	go func() {
		rsp, err := e.link.RoundTrip(req)
		m.mu.Lock()
		defer m.mu.Unlock()
		if e.err = err; err == nil {
			e.out = &reader{mu: &m.mu, src: rsp.Body, sent: e.download}
		}
		e.done = true
	}()
	return ""
}

// step makes one step, unless it is impossible now.
func (m *model) step(s step) (failure string) {
	switch s.Kind {
	case start:
		failure = m.begin(s)
	case pause:
		time.Sleep(time.Duration(s.Milliseconds) * time.Millisecond)
	default:
		m.event(s)
	}
	m.settle()
	if failure == "" {
		failure = m.violation()
	}
	return failure
}

// event applies s to one of the last four exchanges, which s.Which selects. It does nothing if the exchange is not in
// a state for such an event.
func (m *model) event(s step) { //nolint:gocyclo // one case for each event
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.exchanges)
	if n == 0 {
		return
	}
	e := m.exchanges[n-1-s.Which%min(n, 4)]
	switch s.Kind {
	case sendPart:
		e.upload.allow(s.Size)
	case sendEnd:
		e.upload.finish()
	case sendFailure:
		e.fault = e.upload.fail(errBody) || e.fault
	case serverReads:
		e.in.read(s.Size)
	case serverCloses:
		if e.in != nil && !e.in.ended() {
			e.cut = true
			e.in.close()
		}
	case respond:
		e.respond(s.Known, s.Pending)
	case refuse:
		if !e.answered {
			e.fail(s.Code)
			e.answered = true
			e.answer <- answer{err: m.engine.Reset(s.Code)}
		}
	case respondPart:
		e.download.allow(s.Size)
	case respondEnd:
		e.download.finish()
	case respondReset:
		e.fault = e.download.fail(m.engine.Reset(s.Code)) || e.fault
	case clientReads:
		e.out.read(s.Size)
	case clientCloses:
		if e.out != nil {
			e.fault = e.fault || !e.out.whole()
			e.cut = e.cut || !e.in.whole()
			e.out.close()
		}
	case cancel:
		if !e.out.whole() || !e.in.whole() {
			e.fail(s.Code)
		}
		e.cancel(m.engine.Cancel(s.Code))
	case drain:
		e.link.mayEnd = true
		e.link.Drain(s.ServerActs)
	case lose:
		m.lose(e.link, s.ServerActs)
	default:
	}
	// The end of the response may cut off the request. The client sends a request until its body has
	// ended, even if all bytes of Content-Length are sent.
	e.cut = e.cut || e.answered && e.download.ended() && (!e.in.whole() || !e.upload.ended())
}

// fail permits e to fail. If this is its first fault, the code must arrive at the other side.
func (e *exchange) fail(code uint32) {
	if !e.fault && !e.cut && !e.answered && e.in != nil && !e.link.mayEnd {
		e.code = code
	}
	e.fault = true
}

// respond makes the server return a response, unless it already returned one or an error. If sized is true, the response
// has a Content-Length. If pending is true, its body can tell how much can be read without waiting.
func (e *exchange) respond(sized, pending bool) {
	if e.answered {
		return
	}
	e.answered = true
	// A server that answers before it has read the body may never get it from a client that waits for 100 Continue.
	e.cut = e.cut || e.expects && (e.in == nil || !e.in.started)
	var body io.ReadCloser = e.download
	if pending {
		body = pendingBody{e.download}
	}
	rsp := &http.Response{StatusCode: http.StatusOK, Header: make(http.Header), Body: body, ContentLength: -1}
	if sized {
		rsp.ContentLength = int64(e.download.size)
	}
	e.answer <- answer{rsp: rsp}
}

// lose closes the network connection of l. Its exchanges may fail.
func (m *model) lose(l *link, server bool) {
	l.mayEnd = true
	for _, e := range m.exchanges {
		e.fault = e.fault || e.link == l
	}
	l.Break(server)
}

// violation returns the rule that was broken, or "". All other goroutines of the bubble wait: see settle.
func (m *model) violation() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, e := range m.exchanges {
		if text := e.violation(m.engine); text != "" {
			return fmt.Sprintf("exchange %d: %s", id, text)
		}
	}
	// A connection may end only after a drain or a loss, or with a serial engine after an incomplete exchange.
	for i, l := range m.links {
		if l.Ended() && !l.mayEnd && (!m.engine.Serial || !l.incomplete()) {
			return fmt.Sprintf("connection %d has ended", i)
		}
	}
	return ""
}

// violation returns a text if what has happened in the exchange so far is against the rules, and otherwise "".
func (e *exchange) violation(engine *Engine) string {
	for _, v := range []struct{ name, text string }{
		{"request body", e.upload.violation()}, {"response body", e.download.violation()},
		{"received request body", e.in.violation()}, {"received response body", e.out.violation()},
	} {
		if v.text != "" {
			return v.name + " " + v.text
		}
	}
	if e.done && errors.Is(e.err, engine.NotSent) {
		e.fault = true // another connection is possible
		switch {
		case !e.link.mayEnd && !e.spoiled:
			return "the connection was not usable: " + e.err.Error()
		case e.upload.closed() || e.upload.offset > 0:
			return "the request body was used, but the request was not sent"
		}
		return ""
	}
	code := engine.Code(e.err)
	if e.cause != nil {
		code = engine.Code(e.cause)
	}
	switch {
	case (e.err != nil || e.out != nil && e.out.closed) && !e.upload.closed():
		return "the request body is open after the end of the exchange"
	case e.code != 0 && code != 0 && code != e.code:
		return fmt.Sprintf("reset with code %d, not %d", code, e.code)
	case e.fault:
		return ""
	}
	return e.failure()
}

// failure returns how the exchange failed, or "".
func (e *exchange) failure() string {
	switch {
	case e.err != nil:
		return "RoundTrip failed: " + e.err.Error()
	case e.out.failed():
		return "reading the response failed: " + e.out.err.Error()
	// If the exchange was cut on purpose, the server cannot read the request to its end.
	case e.in.failed() && !e.cut:
		return "reading the request failed: " + e.in.err.Error()
	}
	return ""
}

// finish completes the exchanges without a fault and ends all others. After that, nothing may be in
// use.
func (m *model) finish() (failure string) {
	for _, phase := range []struct {
		name string
		goOn func(e *exchange) (open bool)
	}{
		{"sending requests", func(e *exchange) bool {
			if e.fault || e.cut {
				return false
			}
			e.upload.finish()
			e.in.read(large)
			return !e.in.ended()
		}},
		{"sending responses", func(e *exchange) bool {
			if e.fault {
				return false
			}
			e.respond(true, false) // sized and not pending
			e.download.finish()
			e.out.read(large)
			return !e.out.ended()
		}},
		{"ending exchanges", func(e *exchange) bool {
			if e.fault {
				e.cancel(nil)
				if m.engine.Serial { // the server may not read
					e.download.fail(errBody)
				}
			}
			if e.out != nil && !e.out.closed {
				e.out.close()
			}
			return !e.done || e.out != nil && e.out.busy || e.in != nil && e.in.busy || e.given && !e.download.closed()
		}},
	} {
		if failure = m.repeat(phase.goOn); failure != "" {
			return phase.name + ": " + failure
		}
	}
	time.Sleep(2 * time.Second) // the server may wait for the rest of a request
	synctest.Wait()
	if failure = m.violation(); failure != "" {
		return failure
	}
	for _, l := range m.links {
		if l.Ended() {
			continue
		}
		if failure = l.Open(); failure != "" {
			return failure
		}
	}
	return ""
}

// repeat calls goOn for all exchanges until it returns false for each of them.
func (m *model) repeat(goOn func(*exchange) bool) string {
	// idle counts the rounds in a row in which no byte has arrived.
	for idle, previous := 0, -1; ; {
		open := -1
		moved := 0
		m.mu.Lock()
		for id, e := range m.exchanges {
			if goOn(e) {
				open = id
			}
		}
		m.mu.Unlock()
		m.settle()
		if failure := m.violation(); failure != "" || open < 0 {
			return failure
		}
		m.mu.Lock()
		for _, e := range m.exchanges {
			for _, r := range []*reader{e.in, e.out} {
				if r != nil {
					moved += r.offset
				}
			}
		}
		m.mu.Unlock()
		if moved > previous {
			idle = 0
			previous = moved
			continue
		}
		// After 5 s without a byte, give up.
		if idle++; idle > 100 {
			return fmt.Sprintf("exchange %d makes no progress", open)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
