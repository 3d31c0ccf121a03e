package tcplayer

import (
	"errors"
	"fmt"
	"io"
	"net"
)

// The methods beyond net.Conn that a net.TCPConn has, and that make copying
// fast. io.Copy finds those of the connection below by itself.

// WriteTo writes to w what comes, until the peer's end.
func (h *held) WriteTo(w io.Writer) (n int64, err error) {
	told := int64(0)
	if !h.heard.Load() {
		// The time of the first byte is the one thing that a copy in the
		// kernel hides and that an observer cannot do without.
		ok, more, err := awaitFirst(h.Conn)
		switch {
		case err != nil:
			return 0, h.failed(err)
		case ok && !more:
			h.heardEnd()
			return 0, nil
		case ok:
			told = 1
			h.data(1)
		default:
			if n, err = h.writeFirst(w); err != nil || n == 0 {
				return n, err
			}
		}
	}
	rest, err := io.Copy(w, h.Conn)
	h.data(int(rest - told))
	if err == nil {
		h.heardEnd()
	}
	return n + rest, h.why(err)
}

// firstRead is how much writeFirst reads.
const firstRead = 1 << 10

// writeFirst passes the first bytes on. It returns 0 and nil at the end.
func (h *held) writeFirst(w io.Writer) (int64, error) {
	buf := make([]byte, firstRead)
	n, err := h.Read(buf)
	if n > 0 {
		sent, failed := w.Write(buf[:n])
		if failed == nil && sent < n {
			failed = io.ErrShortWrite
		}
		if failed != nil {
			return int64(sent), failed
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return int64(n), err
}

// ReadFrom sends what r gives, until its end.
func (h *held) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(h.Conn, r)
	return n, h.why(err)
}

// CloseWrite tells the peer that nothing more comes.
func (h *held) CloseWrite() error {
	err := closeWrite(h.Conn)
	if err == nil {
		h.half(&h.sentEnd)
	}
	return err
}

// NetConn returns the connection below.
func (h *held) NetConn() net.Conn { return h.Conn }

// closeWrite ends one direction. TLS cannot say so before it has shaken hands:
// like its Write, that waits for it.
func closeWrite(conn net.Conn) error {
	if secure, ok := conn.(interface{ Handshake() error }); ok {
		if err := secure.Handshake(); err != nil {
			return err
		}
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("close one direction of %T: %w", conn, errors.ErrUnsupported)
}

// reset closes conn so that the peer hears of it as an error, where that can be
// done, and at once: what is below TLS goes first, which would say good-bye.
func reset(conn net.Conn) {
	raw := conn
	for {
		if l, ok := raw.(interface{ SetLinger(sec int) error }); ok {
			_ = l.SetLinger(0)
		}
		w, ok := raw.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		raw = w.NetConn()
	}
	_ = raw.Close()
	if raw != conn {
		_ = conn.Close()
	}
}
