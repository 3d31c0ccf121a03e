package h1

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// ownedBody is a request body that counts its calls. A Read waits for the next part.
type ownedBody struct {
	parts    chan []byte // closed at the end of the body
	closes   atomic.Int32
	gone     chan struct{} // closed by Close
	reading  atomic.Int32
	released atomic.Bool // no Read may begin any more
	late     atomic.Bool // a Read began after that
}

func (b *ownedBody) Read(p []byte) (int, error) {
	if b.released.Load() {
		b.late.Store(true)
	}
	b.reading.Add(1)
	defer b.reading.Add(-1)
	select {
	case part, ok := <-b.parts:
		if !ok {
			return 0, io.EOF
		}
		return copy(p, part), nil
	case <-b.gone:
		return 0, net.ErrClosed
	}
}

func (b *ownedBody) Close() error {
	if b.closes.Add(1) == 1 {
		close(b.gone)
	}
	return nil
}

// exchangeModel is one exchange, with the events that decide whether the connection is reusable.
type exchangeModel struct {
	body     *ownedBody
	cancel   context.CancelFunc
	upstream net.Conn
	out      chan string  // for the client, in order
	received bytes.Buffer // what the upstream has received
	mu       sync.Mutex
	rsp      chan *http.Response
	got      *http.Response // nil before the response

	sent, answered bool // the request body has ended; the response has begun
	broken         bool // the request was canceled or the upstream has closed
	read, part     int  // bytes of the response that were read and sent
	closed         bool // the response body was closed
}

const modelSize = 8 // bytes of the response body

// step makes step number k, unless it is impossible now.
func (m *exchangeModel) step(k int) string {
	switch k {
	case 0: // write a part of the request body
		if !m.sent {
			select {
			case m.body.parts <- []byte("part"):
			default: // the body is not read now
			}
		}
	case 1: // end the request body
		if !m.sent {
			close(m.body.parts)
			m.sent = true
		}
	case 2: // respond, perhaps early
		if !m.answered {
			m.answered = true
			m.out <- fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", modelSize)
		}
	case 3: // send a part of the response body
		if m.answered && m.part < modelSize {
			m.part += modelSize / 2
			m.out <- "data"
		}
	case 4: // read a part of the response
		if m.got != nil && m.read < m.part && !m.closed {
			n, err := m.got.Body.Read(make([]byte, modelSize/2))
			m.read += n
			if err != nil && err != io.EOF && !m.broken {
				return fmt.Sprintf("reading the response: %v", err)
			}
		}
	case 5: // close the response body
		if m.got != nil {
			m.closed = true
			_ = m.got.Body.Close()
		}
	case 6:
		m.broken = true
		m.cancel()
	case 7:
		m.broken = true
		_ = m.upstream.Close()
	}
	synctest.Wait()
	select {
	case m.got = <-m.rsp:
	default:
	}
	return ""
}

// runExchange makes the steps. It returns the violated rule, or "".
func runExchange(steps []int) (failure string) {
	client, upstream := net.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	m := &exchangeModel{
		body:   &ownedBody{parts: make(chan []byte), gone: make(chan struct{})},
		cancel: cancel, upstream: upstream, rsp: make(chan *http.Response, 1),
	}
	m.out = make(chan string, 3)
	defer close(m.out)
	go func() {
		for text := range m.out {
			_, _ = io.WriteString(upstream, text)
		}
	}()
	go func() { // the upstream always reads
		r := bufio.NewReader(upstream)
		for {
			b, err := r.ReadByte()
			if err != nil {
				return
			}
			m.mu.Lock()
			m.received.WriteByte(b)
			m.mu.Unlock()
		}
	}()
	var releases, reusable atomic.Int32
	c := NewClientConn(client, func(_ *ClientConn, reuse bool) {
		releases.Add(1)
		if reuse {
			reusable.Add(1)
		}
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://a/", m.body)
	if err != nil {
		return err.Error()
	}
	req.ContentLength = -1
	trip := make(chan struct{})
	go func() {
		defer close(trip)
		if rsp, err := c.RoundTrip(req); err == nil {
			m.rsp <- rsp
		}
	}()
	synctest.Wait()
	for _, k := range steps {
		if failure = m.step(k); failure != "" {
			break
		}
	}
	time.Sleep(2 * finishTimeout)
	synctest.Wait()
	m.mu.Lock()
	whole := bytes.HasSuffix(m.received.Bytes(), []byte("\r\n0\r\n\r\n"))
	m.mu.Unlock()
	clean := whole && m.part == modelSize
	released := releases.Load()

	// A part of the exchange may be open. The end of the connection ends it.
	cancel()
	_ = upstream.Close()
	synctest.Wait()
	select {
	case <-trip:
	default:
		return "RoundTrip does not return after the end of the connection"
	}
	select {
	case m.got = <-m.rsp:
	default:
	}
	if m.got != nil {
		_ = m.got.Body.Close()
	}
	synctest.Wait()
	m.body.released.Store(true)
	_ = c.Close()
	time.Sleep(time.Second)
	synctest.Wait()
	switch {
	case failure != "":
	case releases.Load() != 1:
		failure = fmt.Sprintf("released %d times", releases.Load())
	case reusable.Load() == 1 && !clean:
		failure = "reused after an exchange that did not end cleanly"
	case released == 1 && m.read == modelSize && clean && !m.broken && !m.closed && reusable.Load() == 0:
		failure = "not reused after a clean exchange"
	case m.body.closes.Load() != 1:
		failure = fmt.Sprintf("the request body was closed %d times", m.body.closes.Load())
	case m.body.late.Load() || m.body.reading.Load() != 0:
		failure = "the request body is read after the end of the exchange"
	}
	return failure
}

// TestExchangeModel makes random steps of an exchange: parts of both bodies, an early response, an early
// close, a cancelation and the end of the connection. The connection is released once. It is
// reusable only if both messages are complete. The request body is closed once and read no more. A
// goroutine that remains fails synctest.
func TestExchangeModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 6, 7}), 5, 25).Draw(rt, "steps")
		var failure string
		synctest.Test(t, func(*testing.T) { failure = runExchange(steps) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}
