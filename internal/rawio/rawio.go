//go:build unix && !portable

// Package rawio reads and writes TCP connections by raw system calls, which do not notify the Go
// scheduler. The calls of package net wake the monitor thread of the runtime if the process was
// idle before. At 5 000 requests per second, this took a sixth of the CPU time of the sidecar.
//
// The calls do not block. [syscall.RawConn] waits for the socket between them. The scheduler learns
// of a busy goroutine at the next timer or other system call. Until then it does not preempt the
// goroutine. While a server connection is active, this takes at most the interval of package sweep.
//
// The build constraints of call.go and call_raw.go are the switch. Linux on amd64 and arm64 makes
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
	s.in.step, s.out.step = s.in.receive, s.out.send
	return s
}

// socket is a TCP connection.
type socket struct {
	tcp     *net.TCPConn
	raw     syscall.RawConn
	in, out transfer
}

// transfer is one direction of a socket, with the arguments and results of a Read or Write.
type transfer struct {
	mu   sync.Mutex
	step func(fd uintptr) (done bool) // makes the next system call, when the socket is ready
	p    []byte
	n    int
	err  error
}

func (s *socket) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return s.do("read", &s.in, s.raw.Read, p)
}

func (s *socket) Write(p []byte) (int, error) { return s.do("write", &s.out, s.raw.Write, p) }

// do transfers p by calls of t.step, between which the function wait waits for the socket.
func (s *socket) do(op string, t *transfer, wait func(func(fd uintptr) bool) error, p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p, t.n, t.err = p, 0, nil
	err := wait(t.step)
	t.p = nil
	if failed, ok := errors.AsType[*net.OpError](err); ok {
		failed.Op = op // a deadline was exceeded, or the connection was closed
	} else if err = t.err; err != nil && err != io.EOF { //nolint:errorlint // set by receive
		err = os.NewSyscallError(op, err)
		err = &net.OpError{Op: op, Net: "tcp", Source: s.tcp.LocalAddr(), Addr: s.tcp.RemoteAddr(), Err: err}
	}
	return t.n, err
}

func (t *transfer) receive(fd uintptr) (done bool) {
	if t.n, t.err = Read(fd, t.p); t.n == 0 && t.err == nil {
		t.err = io.EOF
	}
	return t.err != syscall.EAGAIN //nolint:errorlint // an error number
}

func (t *transfer) send(fd uintptr) (done bool) {
	for t.err = nil; t.n < len(t.p) && t.err == nil; {
		n, err := Write(fd, t.p[t.n:])
		t.n, t.err = t.n+n, err
	}
	return t.err != syscall.EAGAIN //nolint:errorlint // an error number
}
