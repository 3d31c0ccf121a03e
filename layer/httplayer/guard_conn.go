package httplayer

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// guardConn is a connection as a server reads it.
type guardConn struct {
	net.Conn
	guard  *Guard
	scan   guardScan
	read   int64 // before the bytes being scanned
	state  atomic.Int32
	held   int    // bytes of a preface that were read, and wait for the rest of it
	rest   []byte // that came together with a request for an upgrade, and may be no HTTP
	err    *GuardError
	spoilt int // bytes of guardSpoil that were handed out; err comes behind them
}

const (
	guardOn   = iota
	guardOff  // the bytes are not HTTP/1, or not any more
	guardCut  // an offence was found
	guardTold // and the server is being told
	guardOver // the connection was cut, and closed or hijacked: all that is left is the error
)

// Read hands out what two parsers cannot read in two ways.
func (c *guardConn) Read(p []byte) (int, error) {
	switch c.state.Load() {
	case guardOff:
		return c.fetch(p)
	case guardCut, guardTold:
		return c.spoiled(p)
	case guardOver:
		return 0, c.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if c.scan.bad != 0 { // as was put off
		c.cut(0)
		return c.spoiled(p)
	}
	n, good, err := c.receive(p)
	switch {
	case c.scan.bad != 0 && n == 1 && c.scan.has(isFirst):
		// So net/http looks whether the client is still there, while a handler
		// runs. If that one hijacks the connection, it is a tunnel's first byte;
		// if not, no request begins with it, and what is behind it is spoilt.
		return n, nil
	case c.scan.bad != 0:
		c.cut(good)
		if good > 0 {
			return good, nil
		}
		return c.spoiled(p)
	case c.scan.kind == guardH2:
		c.state.CompareAndSwap(guardOn, guardOff)
	}
	c.read += int64(n)
	return n, err
}

// receive reads, and returns how much of it is good.
func (c *guardConn) receive(p []byte) (n, good int, err error) {
	if c.held > 0 {
		at := int(c.scan.n)
		n = copy(p, h2Preface[at-c.held:at])
		c.held -= n
		good = n
	}
	for n < len(p) {
		var more int
		more, err = c.fetch(p[n:])
		if c.state.Load() == guardOff { // hijacked while it waited
			return n + more, n + more, err
		}
		taken := c.scan.scan(p[n : n+more])
		good += taken
		if c.scan.bad == 0 && c.scan.has(atDoor) && taken < more {
			c.rest = append(bytes.Clone(p[n+taken:n+more]), c.rest...)
			return n + taken, good, nil
		}
		n += more
		switch {
		case !c.scan.undecided():
			return n, good, err
		case err != nil:
			c.held = n
			return 0, 0, err
		}
	}
	return n, good, err
}

// fetch reads what was kept, or else from below.
func (c *guardConn) fetch(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil
	}
	return n, nil
}

// cut ends the reading, good bytes behind c.read.
func (c *guardConn) cut(good int) {
	c.err = &GuardError{Reason: c.scan.bad, Offset: c.read + int64(good), Remote: c.RemoteAddr()}
	if c.state.CompareAndSwap(guardOn, guardCut) {
		c.guard.cut(c.err)
	}
}

// guardSpoil is what net/http gets in place of the byte that offends. Wherever
// in a head, a chunk's line or trailers that is, it makes a whole line of which
// nothing can be made; so net/http sees it for itself, and answers. An error
// would do that, too, but it would cancel the request that is being served.
const guardSpoil = "\r\x00\r\n\r\n"

// spoiled is Read behind an offence.
func (c *guardConn) spoiled(p []byte) (int, error) {
	n := copy(p, guardSpoil[c.spoilt:])
	if n == 0 && len(p) > 0 {
		return 0, c.err
	}
	if c.spoilt += n; c.spoilt > 1 { // one byte is net/http looking whether the client is there
		c.state.CompareAndSwap(guardCut, guardTold)
	}
	return n, nil
}

// SetDeadline ends the guard if there is no time: net/http calls it when a
// connection is hijacked, and at no other time. From then on it does not read
// requests from it. Of a connection that was cut there is no more then: what was
// meant for net/http must not get into a tunnel.
func (c *guardConn) SetDeadline(t time.Time) error {
	if t.IsZero() && !c.state.CompareAndSwap(guardOn, guardOff) && !c.state.CompareAndSwap(guardCut, guardOver) {
		c.state.CompareAndSwap(guardTold, guardOver)
	}
	return c.Conn.SetDeadline(t)
}

// ReadFrom lets the kernel copy what is sent, where the connection can.
func (c *guardConn) ReadFrom(r io.Reader) (int64, error) {
	if to, ok := c.Conn.(io.ReaderFrom); ok {
		return to.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, r)
}

// CloseWrite ends what is sent, where the connection can.
func (c *guardConn) CloseWrite() error {
	if half, ok := c.Conn.(halfCloser); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

// NetConn returns the connection that is guarded.
func (c *guardConn) NetConn() net.Conn { return c.Conn }

// guardLinger and guardRest bound how long, and how much, of the rest of a
// connection that was cut is read: bytes that nobody read would reset it, and
// the client might not see the answer.
const (
	guardLinger = 50 * time.Millisecond
	guardRest   = 256 << 10
)

// Close closes the connection. Where the server was told that it is cut, and may
// have answered, that may take 50 ms.
func (c *guardConn) Close() error {
	if c.state.CompareAndSwap(guardTold, guardOver) && c.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(guardLinger))
		_, _ = io.CopyN(io.Discard, c.Conn, guardRest)
	}
	return c.Conn.Close()
}
