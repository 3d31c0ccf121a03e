package h1

import "net"

// idleRead is a Read on an idle connection to a server, which runs on its own goroutine. It finds out
// that the server has closed the connection where the socket cannot be examined directly. Usually it
// stays blocked until the next response, and then returns its first byte.
type idleRead struct {
	done chan struct{}
	b    [1]byte
	n    int
	err  error
}

// startIdleRead starts to read from conn on another goroutine, to notice that an idle connection was
// closed.
func startIdleRead(conn net.Conn) *idleRead {
	r := &idleRead{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.n, r.err = conn.Read(r.b[:])
	}()
	return r
}

// ended reports whether the Read has ended.
func (r *idleRead) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// result waits until the Read that startIdleRead started has ended. It copies the byte that it read, if
// any, to p, and returns its result.
func (r *idleRead) result(p []byte) (int, error) {
	<-r.done
	return copy(p, r.b[:r.n]), r.err
}
