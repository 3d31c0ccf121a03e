//go:build unix && !portable

// Package rawio reads and writes TCP connections with raw system calls, which do not notify the Go
// scheduler. Package net's calls wake the runtime's monitor thread if the process was idle before.
// At 5 000 requests per second, this took a sixth of the sidecar's CPU time.
//
// The calls do not block. [syscall.RawConn] waits for the socket between them. The scheduler learns
// of a busy goroutine at the next timer or other system call. Until then it does not preempt the
// goroutine. While a server connection is active, this takes at most the interval of package sweep.
//
// The build constraints in call.go and call_raw.go are the switch. Linux on amd64 and arm64 makes
// such calls. The race detector and other systems use package syscall.
package rawio

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// New returns a reader and writer for c, with the errors and the deadlines of c. It can be used
// concurrently, and together with c. If c is not a TCP connection, New returns c.
func New(c net.Conn) io.ReadWriter {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	s := &socket{tcp: tcp, raw: raw}
	// A method value takes an allocation, so step is set once and not for each Read or Write.
	s.in.step = s.in.receive
	s.out.step = s.out.send
	return s
}

// socket reads and writes a TCP connection for New.
type socket struct {
	tcp     *net.TCPConn
	raw     syscall.RawConn
	in, out transfer
}

// transfer is one direction of a socket. It holds the parameters and results of a Read or Write,
// because step must not be a closure of each call, which would be allocated. mu allows one call at a
// time.
type transfer struct {
	mu   sync.Mutex
	step func(fd uintptr) (done bool) // makes the next system call, when the socket is ready
	p    []byte
	n    int
	err  error
}

// Read implements [io.Reader]. It reads by a system call, which is repeated after a wait if there is no byte.
func (s *socket) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return s.do("read", &s.in, s.raw.Read, p)
}

// Write implements [io.Writer]. It writes all of p, unless it fails.
func (s *socket) Write(p []byte) (int, error) { return s.do("write", &s.out, s.raw.Write, p) }

// do transfers p by calls of t.step. wait, a method of syscall.RawConn, calls t.step again each time
// the socket is ready, until it returns true.
func (s *socket) do(op string, t *transfer, wait func(func(fd uintptr) bool) error, p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p = p
	t.n = 0
	t.err = nil
	err := wait(t.step)
	t.p = nil
	if failed, ok := errors.AsType[*net.OpError](err); ok {
		failed.Op = op // a deadline was exceeded, or the connection was closed; wait returns no other errors
	} else if err = t.err; err != nil && err != io.EOF { //nolint:errorlint // set by receive
		err = os.NewSyscallError(op, err)
		err = &net.OpError{Op: op, Net: "tcp", Source: s.tcp.LocalAddr(), Addr: s.tcp.RemoteAddr(), Err: err}
	}
	return t.n, err
}

// receive makes one system call for Read. It returns false if no byte has arrived.
func (t *transfer) receive(fd uintptr) (done bool) {
	if t.n, t.err = Read(fd, t.p); t.n == 0 && t.err == nil {
		t.err = io.EOF
	}
	return t.err != syscall.EAGAIN //nolint:errorlint // an error number
}

// send makes system calls for Write until all bytes are sent. It returns false if the socket's buffer
// is full.
func (t *transfer) send(fd uintptr) (done bool) {
	for t.err = nil; t.n < len(t.p) && t.err == nil; {
		n, err := Write(fd, t.p[t.n:])
		t.n += n
		t.err = err
	}
	return t.err != syscall.EAGAIN //nolint:errorlint // an error number
}
