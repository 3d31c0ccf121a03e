package httplayer

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// wire is the connection below net/http. It records facts that net/http does
// not report: whether a request was sent, whether the peer closed the
// connection, and the SETTINGS of an HTTP/2 server.
type wire struct {
	net.Conn
	frames *frames              // nil in HTTP/1.1
	tls    *tls.ConnectionState // nil in cleartext
	heard  atomic.Bool          // a byte was received
	sent   atomic.Int64
	lost   atomic.Bool   // closed or reset by the peer, not by net/http
	over   chan struct{} // closed at the end of the connection; may be nil
	ends   sync.Once
	rest   rest       // for HTTP/1.1
	head   *plainHead // of the current request, if net/http cannot write it
}

func (w *wire) Read(p []byte) (n int, err error) {
	if w.frames != nil {
		n, err = w.readH2(p)
	} else {
		n, err = w.readH1(p)
	}
	if err != nil {
		w.fail(err)
	}
	return n, err
}

func (w *wire) readH2(p []byte) (int, error) {
	w.frames.processed()
	n, err := w.Conn.Read(p)
	w.frames.scan(p[:n])
	return n, err
}

func (w *wire) readH1(p []byte) (int, error) {
	w.rest.begin()
	n, err := w.Conn.Read(p)
	unasked := w.rest.finish()
	if n > 0 {
		n, err = w.accept(p[:n], unasked, err)
	}
	return n, err
}

// accept ends the connection if the server sends bytes without a request.
// net/http would log them, or take them for the next response.
func (w *wire) accept(p []byte, unasked bool, err error) (int, error) {
	if !w.heard.Load() {
		w.heard.Store(true)
	}
	if unasked {
		return 0, errUnasked
	}
	return len(p), err
}

func (w *wire) Write(p []byte) (int, error) {
	if w.head != nil {
		return w.writeHead(p)
	}
	return w.write(p)
}

func (w *wire) write(p []byte) (int, error) {
	w.rest.ask()
	n, err := w.Conn.Write(p)
	w.sent.Add(int64(n))
	if err != nil {
		w.fail(err)
	}
	return n, err
}

func (w *wire) fail(err error) {
	if !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
		w.lost.Store(true)
	}
	w.end()
}

func (w *wire) end() {
	w.rest.end()
	if w.frames != nil {
		w.frames.end()
	}
	if w.over != nil {
		w.ends.Do(func() { close(w.over) })
	}
}

func (w *wire) Close() error {
	w.end()
	return w.Conn.Close()
}

// CloseWrite is for upgraded connections.
func (w *wire) CloseWrite() error {
	if half, ok := w.Conn.(halfCloser); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}
