package messages

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gotower/gotower/internal/conntest"
)

// ending is what a recorder does with the connection after its scripted bytes.
type ending int

const (
	keeps  ending = iota // it reads the next request
	closes               // it closes the connection
	holds                // it sends nothing more, and closes when the case ends
)

// script contains the bytes that a recorder sends after a request.
type script struct {
	answer []byte
	piece  int // size of each write, so that the bytes arrive in pieces; 0: one write
	end    ending
}

// okScript is the response to each request in the tests about requests.
var okScript = script{answer: []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), end: keeps}

// recorder is a backend that records each request's bytes and sends its script's bytes.
type recorder struct {
	addr string

	mu       sync.Mutex
	over     *sync.Cond // busy is zero again
	busy     int        // requests that have begun to arrive and are not recorded yet
	script   script
	requests [][]byte
	held     []net.Conn
}

func newRecorder(t testing.TB) *recorder {
	t.Helper()
	r := &recorder{script: okScript}
	r.over = sync.NewCond(&r.mu)
	r.addr = conntest.Serve(t, r.serve)
	return r
}

// begin starts a case.
func (r *recorder) begin(s script) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.script, r.requests = s, nil
}

// end ends a case, and returns the requests that arrived completely.
func (r *recorder) end() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.busy > 0 { // a proxy that gives up a request closes its connection
		r.over.Wait()
	}
	for _, conn := range r.held {
		_ = conn.Close()
	}
	r.held = nil
	return r.requests
}

func (r *recorder) serve(_ int, conn net.Conn) {
	in := bufio.NewReaderSize(conn, 1<<16)
	for {
		if _, err := in.Peek(1); err != nil {
			return
		}
		r.mu.Lock()
		r.busy++
		r.mu.Unlock()
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second)) // a proxy may forget a request that it gives up
		request, err := readRequest(in, conn)
		_ = conn.SetReadDeadline(time.Time{})
		if !r.record(request, err, conn) {
			return
		}
	}
}

// record ends a request, and sends the scripted bytes unless there was an error. It reports whether
// the connection stays open for the next request.
func (r *recorder) record(request []byte, err error, conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy--
	r.over.Broadcast()
	if err != nil {
		return false
	}
	r.requests = append(r.requests, request)
	_ = conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
	err = writePieces(conn, r.script.answer, r.script.piece)
	switch r.script.end {
	case holds:
		r.held = append(r.held, conn)
	case closes:
		_ = conn.Close() // before the next case, which must not use it
	case keeps:
	}
	return err == nil && r.script.end != closes
}

// readRequest reads one request's bytes. If the request asks for it, 100 Continue is sent to conn.
func readRequest(in *bufio.Reader, conn io.Writer) ([]byte, error) {
	var all bytes.Buffer
	length, chunked := 0, false
	for {
		line, err := in.ReadSlice('\n')
		all.Write(line)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if bytes.HasSuffix(all.Bytes(), []byte("\r\n\r\n")) {
			break
		}
		name, value, _ := strings.Cut(string(line), ":")
		switch value = strings.ToLower(strings.TrimSpace(value)); strings.ToLower(name) {
		case "content-length":
			if length, err = strconv.Atoi(value); err != nil {
				return nil, err
			}
		case "transfer-encoding":
			chunked = true
		case "expect":
			if value == "100-continue" {
				if _, err := io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
					return nil, err
				}
			}
		}
	}
	if !chunked {
		_, err := io.CopyN(&all, in, int64(length))
		return all.Bytes(), err
	}
	err := copyChunks(&all, in)
	return all.Bytes(), err
}

// copyChunks copies a chunked body with its trailers.
func copyChunks(w *bytes.Buffer, in *bufio.Reader) error {
	for {
		line, err := in.ReadString('\n')
		w.WriteString(line)
		if err != nil {
			return err
		}
		digits, _, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ";")
		size, err := strconv.ParseInt(strings.TrimSpace(digits), 16, 32)
		if err != nil {
			return fmt.Errorf("chunk size %q: %w", line, err)
		}
		if size == 0 {
			break
		}
		if _, err := io.CopyN(w, in, size+2); err != nil {
			return err
		}
	}
	for {
		line, err := in.ReadString('\n')
		w.WriteString(line)
		if err != nil || line == "\r\n" {
			return err
		}
	}
}

// writePieces writes b in writes of at most n bytes, or in one write if n is 0.
func writePieces(w io.Writer, b []byte, n int) error {
	if n == 0 {
		_, err := w.Write(b)
		return err
	}
	for piece := range slices.Chunk(b, n) {
		if _, err := w.Write(piece); err != nil {
			return err
		}
		runtime.Gosched()
	}
	return nil
}

// patience is how long a proxy may take to answer a message, forwarded or not. The machine may be
// busy. nginx and haproxy have time limits of 2 s.
const patience = 20 * time.Second

// exchange sends input to a proxy, in pieces like writePieces, and returns everything that it
// receives until the proxy closes the connection. silent is true if that does not happen in time.
func exchange(t testing.TB, addr string, input []byte, piece int) (output []byte, silent bool) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Errorf("the proxy at %s does not listen: %v", addr, err)
		return nil, true
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_ = writePieces(conn, input, piece)
	}()
	output, err = io.ReadAll(conn)
	_ = conn.Close()
	<-sent
	return output, errors.Is(err, os.ErrDeadlineExceeded)
}
