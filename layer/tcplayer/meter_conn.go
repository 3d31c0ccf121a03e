package tcplayer

import (
	"io"
	"net"
	"sync/atomic"
)

// metered is a connection that is counted. It has no bytes of its own.
type metered struct {
	net.Conn
	meter *Meter
	ended atomic.Bool
}

// unmetered returns the connection that conn only counts the bytes of, or conn.
func unmetered(conn net.Conn) net.Conn {
	for {
		m, ok := conn.(*metered)
		if !ok {
			return conn
		}
		conn = m.Conn
	}
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	m.read(n)
	if err != nil {
		m.failed(err)
	}
	return n, err
}

func (m *metered) Write(p []byte) (int, error) {
	n, err := m.Conn.Write(p)
	m.written(n)
	if err != nil {
		m.failed(err)
	}
	return n, err
}

func (m *metered) Close() error {
	m.over("")
	return m.Conn.Close()
}

// WriteTo writes to w what comes, until the peer's end.
func (m *metered) WriteTo(w io.Writer) (int64, error) {
	n, err := io.Copy(&telling{w, m.read}, m.Conn)
	m.copied(err)
	return n, err
}

// ReadFrom sends what r gives, until its end.
func (m *metered) ReadFrom(r io.Reader) (int64, error) {
	n, err := passOn(m.Conn, r, m.written)
	m.copied(err)
	return n, err
}

// CloseWrite tells the peer that nothing more comes.
func (m *metered) CloseWrite() error { return closeWrite(m.Conn) }

// NetConn returns the connection below.
func (m *metered) NetConn() net.Conn { return m.Conn }

func (m *metered) read(n int) {
	if n > 0 {
		count(m.meter.to.Read, float64(n))
	}
}

func (m *metered) written(n int) {
	if n > 0 {
		count(m.meter.to.Written, float64(n))
	}
}

// over counts the end, once.
func (m *metered) over(errno string) {
	if !m.ended.Load() && !m.ended.Swap(true) {
		m.meter.closed(errno)
	}
}

// failed takes an error of this connection. One that is none of the system's, as
// a deadline or the end, does not say that the connection is over.
func (m *metered) failed(err error) {
	if name := errnoOf(err); name != "" {
		m.over(name)
	}
}

// copied takes what a copy ended with, which may be the other side's.
func (m *metered) copied(err error) {
	if err != nil && errnoOf(err) != "" && dead(m.Conn) {
		m.failed(err)
	}
}
