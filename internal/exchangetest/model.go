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

// link is a connection of the model.
type link struct {
	Conn
	mayEnd bool // the connection was drained or lost
	last   *exchange
}

// incomplete reports whether the last exchange may be incomplete.
func (l *link) incomplete() bool { return l.last != nil && (l.last.fault || l.last.cut) }

// exchange is one request with its response.
type exchange struct {
	link     *link
	spoiled  bool    // the exchange before may have ended the connection
	up, down *body   // bodies given to the client and the server
	in, out  *reader // bodies received by the server and the client; nil before
	expects  bool    // with Expect: 100-continue
	cancel   context.CancelCauseFunc

	answer   chan answer
	answered bool
	given    bool  // the server has the response body
	cause    error // cause of the end of the server's context, before a response

	done bool // RoundTrip has returned
	err  error

	fault bool   // the exchange may fail
	cut   bool   // the server may not receive the whole request
	code  uint32 // expected code at the client or the server; 0 if unknown
}

type answer struct {
	rsp *http.Response
	err error
}

type model struct {
	engine *Engine
	links  []*link
	conn   *link // connection for new exchanges

	mu  sync.Mutex // guards the fields below; the engine is called without it, except to end or close something
	all []*exchange
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
	for _, e := range m.all {
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
	for _, e := range m.all {
		e.cancel(nil)
		e.up.fail(errBody)
		e.down.fail(errBody)
		if e.out != nil {
			_ = e.out.from.Close()
		}
	}
	m.mu.Unlock()
	for _, l := range m.links {
		l.Close()
	}
}

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

// serve is the server.
func (m *model) serve(req *http.Request) (*http.Response, error) {
	id, err := strconv.Atoi(req.Header.Get("Id"))
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	e := m.all[id]
	e.in = &reader{mu: &m.mu, from: req.Body, sent: e.up}
	m.mu.Unlock()
	context.AfterFunc(req.Context(), func() { e.down.fail(errBody) })
	var a answer
	select {
	case a = <-e.answer:
	case <-req.Context().Done():
		a.err = context.Cause(req.Context())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.given = a.rsp != nil; !e.answered {
		e.cause = a.err
	}
	return a.rsp, a.err
}

// begin starts an exchange, if the connection permits it. It makes a new connection if the last one
// has ended.
func (m *model) begin(s step) (failure string) {
	if m.conn.Ended() {
		m.connect()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.conn.Acquire() {
		return ""
	}
	if last := m.conn.last; m.engine.Serial && last != nil && (!last.up.complete() || !last.down.complete()) {
		return "the connection is reusable although an exchange is not complete"
	}
	id := len(m.all)
	ctx, cancel := context.WithCancelCause(context.Background())
	e := &exchange{link: m.conn, up: newBody(2*id, s.Up), down: newBody(2*id+1, s.Down), expects: s.Expects, cancel: cancel}
	e.answer = make(chan answer, 1)
	e.spoiled = m.engine.Serial && e.link.incomplete()
	e.link.last = e
	m.all = append(m.all, e)
	var body io.ReadCloser = e.up
	if s.Pending {
		body = pendingBody{e.up}
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
	go func() {
		rsp, err := e.link.RoundTrip(req)
		m.mu.Lock()
		defer m.mu.Unlock()
		if e.err = err; err == nil {
			e.out = &reader{mu: &m.mu, from: rsp.Body, sent: e.down}
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

// event makes a step of an exchange.
func (m *model) event(s step) { //nolint:gocyclo // one case for each event
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.all)
	if n == 0 {
		return
	}
	e := m.all[n-1-s.Which%min(n, 4)]
	switch s.Kind {
	case sendPart:
		e.up.allow(s.Size)
	case sendEnd:
		e.up.finish()
	case sendFailure:
		e.fault = e.up.fail(errBody) || e.fault
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
		e.down.allow(s.Size)
	case respondEnd:
		e.down.finish()
	case respondReset:
		e.fault = e.down.fail(m.engine.Reset(s.Code)) || e.fault
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
	// The request may be cut off by the end of its response. The client sends a request until its body
	// has ended, also if all bytes of Content-Length are sent.
	e.cut = e.cut || e.answered && e.down.ended() && (!e.in.whole() || !e.up.ended())
}

// fail permits e to fail. If this is its first fault, the code must arrive at the other side.
func (e *exchange) fail(code uint32) {
	if !e.fault && !e.cut && !e.answered && e.in != nil && !e.link.mayEnd {
		e.code = code
	}
	e.fault = true
}

// respond makes the server return a response, unless it has returned one or an error.
func (e *exchange) respond(known, pending bool) {
	if e.answered {
		return
	}
	e.answered = true
	e.cut = e.cut || e.expects && (e.in == nil || !e.in.began)
	var body io.ReadCloser = e.down
	if pending {
		body = pendingBody{e.down}
	}
	rsp := &http.Response{StatusCode: http.StatusOK, Header: make(http.Header), Body: body, ContentLength: -1}
	if known {
		rsp.ContentLength = int64(e.down.size)
	}
	e.answer <- answer{rsp: rsp}
}

// lose closes the network connection of l. Its exchanges may fail.
func (m *model) lose(l *link, server bool) {
	l.mayEnd = true
	for _, e := range m.all {
		e.fault = e.fault || e.link == l
	}
	l.Break(server)
}

// violation returns the rule that was broken, or "". All goroutines wait.
func (m *model) violation() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, e := range m.all {
		if text := e.violation(m.engine); text != "" {
			return fmt.Sprintf("exchange %d: %s", id, text)
		}
	}
	for i, l := range m.links {
		if l.Ended() && !l.mayEnd && (!m.engine.Serial || !l.incomplete()) {
			return fmt.Sprintf("connection %d has ended", i)
		}
	}
	return ""
}

func (e *exchange) violation(engine *Engine) string {
	for _, v := range []struct{ name, text string }{
		{"request body", e.up.violation()}, {"response body", e.down.violation()},
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
		case e.up.closed() || e.up.at > 0:
			return "the request body was used, but the request was not sent"
		}
		return ""
	}
	code := engine.Code(e.err)
	if e.cause != nil {
		code = engine.Code(e.cause)
	}
	switch {
	case (e.err != nil || e.out != nil && e.out.closed) && !e.up.closed():
		return "the request body is open after the end of the exchange"
	case e.code != 0 && code != 0 && code != e.code:
		return fmt.Sprintf("reset with code %d, not %d", code, e.code)
	case e.fault:
		return ""
	}
	return e.failure()
}

// failure returns how the exchange has failed, or "".
func (e *exchange) failure() string {
	switch {
	case e.err != nil:
		return "RoundTrip failed: " + e.err.Error()
	case e.out.failed():
		return "reading the response failed: " + e.out.err.Error()
	case e.in.failed() && !e.cut:
		return "reading the request failed: " + e.in.err.Error()
	}
	return ""
}

// finish completes the exchanges that have no fault and ends all others. After that, nothing may be
// in use.
func (m *model) finish() (failure string) {
	for _, phase := range []struct {
		name string
		goOn func(e *exchange) (open bool)
	}{
		{"sending requests", func(e *exchange) bool {
			if e.fault || e.cut {
				return false
			}
			e.up.finish()
			e.in.read(large)
			return !e.in.ended()
		}},
		{"sending responses", func(e *exchange) bool {
			if e.fault {
				return false
			}
			e.respond(true, false)
			e.down.finish()
			e.out.read(large)
			return !e.out.ended()
		}},
		{"ending exchanges", func(e *exchange) bool {
			if e.fault {
				e.cancel(nil)
				if m.engine.Serial { // the server may not read
					e.down.fail(errBody)
				}
			}
			if e.out != nil && !e.out.closed {
				e.out.close()
			}
			return !e.done || e.out != nil && e.out.busy || e.in != nil && e.in.busy || e.given && !e.down.closed()
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
	for idle, before := 0, -1; ; {
		open, moved := -1, 0
		m.mu.Lock()
		for id, e := range m.all {
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
		for _, e := range m.all {
			for _, r := range []*reader{e.in, e.out} {
				if r != nil {
					moved += r.at
				}
			}
		}
		m.mu.Unlock()
		if moved > before {
			idle, before = 0, moved
			continue
		}
		if idle++; idle > 100 {
			return fmt.Sprintf("exchange %d makes no progress", open)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
