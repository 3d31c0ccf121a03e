package h1

import "net"

// idleRead is a Read of an idle connection to a server, on its own goroutine. It replaces looking
// at a socket that is inaccessible. If the server sends bytes or closes the connection,
// the Read ends. Otherwise its result is the first byte of the next response.
type idleRead struct {
	done chan struct{}
	b    [1]byte
	n    int
	err  error
}

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

// result waits for the end of the Read, and returns its result.
func (r *idleRead) result(p []byte) (int, error) {
	<-r.done
	return copy(p, r.b[:r.n]), r.err
}
