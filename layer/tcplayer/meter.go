package tcplayer

import (
	"context"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"

	"github.com/gotower/gotower/layer"
)

// Instruments are where a [Meter] writes. Their labels are bound before they are
// given, but for the one that is named. What is nil is not recorded.
type Instruments struct {
	Opened  metrics.Counter // connections, ever
	Open    metrics.Gauge   // connections that are open
	Closed  metrics.Counter // connections that are over; label "errno": "" or the name of what broke them, as ECONNRESET
	Read    metrics.Counter // bytes that the peer sent
	Written metrics.Counter // bytes that the peer was sent
}

func (i Instruments) orDiscard() Instruments {
	for _, c := range []*metrics.Counter{&i.Opened, &i.Closed, &i.Read, &i.Written} {
		if *c == nil {
			*c = discard.NewCounter()
		}
	}
	if i.Open == nil {
		i.Open = discard.NewGauge()
	}
	return i
}

// Meter counts connections, and what goes over them. Make one for each set of
// labels, and keep it: it binds the label of what ended connections once. It is
// safe for concurrent use. A panic of an instrument is dropped.
type Meter struct {
	to     Instruments
	clean  metrics.Counter
	broken sync.Map // of metrics.Counter, by errno
}

// NewMeter returns a Meter that writes to i.
func NewMeter(i Instruments) *Meter {
	i = i.orDiscard()
	return &Meter{to: i, clean: i.Closed.With("errno", "")}
}

// Conn counts conn as open from now on, and returns what counts its bytes and its
// end, which is when it is closed, or when an error of the system broke it.
//
// It has ReadFrom, WriteTo and CloseWrite and uses those that conn has, so that
// the kernel still copies between two TCP connections. While it does, bytes are
// counted in pieces: what is counted is behind by 64 KiB, or an eighth of what
// was copied, up to 1 MiB. That a copy failed counts for the side on which the
// connection is gone, which is known on Linux; elsewhere for neither. NetConn
// returns conn.
func (m *Meter) Conn(conn net.Conn) net.Conn { return m.open(conn) }

func (m *Meter) open(conn net.Conn) *meteredConn {
	count(m.to.Opened, 1)
	count(m.to.Open, 1)
	return &meteredConn{Conn: conn, meter: m}
}

func (m *Meter) closed(errno string) {
	defer count(m.to.Open, -1)       // there is nothing to count after it
	defer func() { _ = recover() }() // of With
	if errno == "" {
		count(m.clean, 1)
		return
	}
	kept, ok := m.broken.Load(errno)
	if !ok {
		kept, _ = m.broken.LoadOrStore(errno, m.to.Closed.With("errno", errno))
	}
	if broken, ok := kept.(metrics.Counter); ok {
		count(broken, 1)
	}
}

// count drops a panic of the instrument, because any goroutine may read from a
// connection that is counted.
func count(to interface{ Add(delta float64) }, n float64) {
	defer func() { _ = recover() }()
	to.Add(n)
}

// WrapServer is the layer that counts connections which somebody else made: its
// peer is who made them.
//
// Admission: none of its own; Ready is forwarded. A connection that is refused
// counts as opened, and as closed at once.
//
// Cancellation: the context is passed as it is.
//
// Body: what next left open counts as closed when Call returns.
//
// Errors: passed as they are.
//
// Cost: one allocation, and the instruments.
func (m *Meter) WrapServer(next Server) Server {
	notNil(next)
	return &meteredServer{next, m}
}

type meteredServer struct {
	Server
	meter *Meter
}

func (s *meteredServer) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	counted := s.meter.open(conn)
	defer counted.over("")
	return s.Server.Call(ctx, counted)
}

func (s *meteredServer) Next() Server { return s.Server }

func (s *meteredServer) Describe() layer.Node { return layer.Node{Name: "meter"} }

// WrapDial returns dial with its connections counted. Use it as the argument of
// [WithDialContext] or as the Dial of a [Dialer].
func (m *Meter) WrapDial(
	dial func(ctx context.Context, network, addr string) (net.Conn, error),
) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if dial == nil {
		panic("tcplayer: nil dial function")
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil || conn == nil {
			return conn, err
		}
		return m.Conn(conn), nil
	}
}

// metered is a connection that is counted. It has no bytes of its own.
type meteredConn struct {
	net.Conn
	meter *Meter
	ended atomic.Bool
}

// unmetered returns the connection that conn only counts the bytes of, or conn.
func withoutMeter(conn net.Conn) net.Conn {
	for {
		m, ok := conn.(*meteredConn)
		if !ok {
			return conn
		}
		conn = m.Conn
	}
}

func (m *meteredConn) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	m.read(n)
	if err != nil {
		m.failed(err)
	}
	return n, err
}

func (m *meteredConn) Write(p []byte) (int, error) {
	n, err := m.Conn.Write(p)
	m.written(n)
	if err != nil {
		m.failed(err)
	}
	return n, err
}

func (m *meteredConn) Close() error {
	m.over("")
	return m.Conn.Close()
}

// WriteTo writes to w what comes, until the peer's end.
func (m *meteredConn) WriteTo(w io.Writer) (int64, error) {
	n, err := io.Copy(&countingWriter{w, m.read}, m.Conn)
	m.copied(err)
	return n, err
}

// ReadFrom sends what r gives, until its end.
func (m *meteredConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := copyCounted(m.Conn, r, m.written)
	m.copied(err)
	return n, err
}

// CloseWrite tells the peer that nothing more comes.
func (m *meteredConn) CloseWrite() error { return closeWrite(m.Conn) }

// NetConn returns the connection below.
func (m *meteredConn) NetConn() net.Conn { return m.Conn }

func (m *meteredConn) read(n int) {
	if n > 0 {
		count(m.meter.to.Read, float64(n))
	}
}

func (m *meteredConn) written(n int) {
	if n > 0 {
		count(m.meter.to.Written, float64(n))
	}
}

// over counts the end, once.
func (m *meteredConn) over(errno string) {
	if !m.ended.Load() && !m.ended.Swap(true) {
		m.meter.closed(errno)
	}
}

// failed takes an error of this connection. One that is none of the system's, as
// a deadline or the end, does not say that the connection is over.
func (m *meteredConn) failed(err error) {
	if name := errnoOf(err); name != "" {
		m.over(name)
	}
}

// copied takes what a copy ended with, which may be the other side's.
func (m *meteredConn) copied(err error) {
	if err != nil && errnoOf(err) != "" && isClosed(m.Conn) {
		m.failed(err)
	}
}

// telling is a writer that tells how much is written to it, as it goes.
type countingWriter struct {
	io.Writer
	told func(n int)
}

func (t *countingWriter) Write(p []byte) (int, error) {
	n, err := t.Writer.Write(p)
	t.told(n)
	return n, err
}

func (t *countingWriter) ReadFrom(r io.Reader) (int64, error) {
	return copyCounted(t.Writer, r, t.told)
}

// How much the kernel copies before anybody hears of it: more as there is more,
// so that it costs little and what was told is never far behind.
const (
	minPiece = 64 << 10
	maxPiece = 1 << 20
)

// passOn is io.Copy that tells how much it has copied, as it goes.
func copyCounted(dst io.Writer, src io.Reader, told func(n int)) (n int64, err error) {
	whole, limited := src.(*io.LimitedReader)
	if !limited {
		whole = &io.LimitedReader{R: src, N: math.MaxInt64}
	}
	if !byKernel(dst, whole.R) {
		// Neither may have a way past what counts.
		return io.Copy(struct{ io.Writer }{&countingWriter{dst, told}}, struct{ io.Reader }{src})
	}
	next := int64(minPiece)
	if limited && whole.N <= maxPiece {
		next = whole.N
	}
	for whole.N > 0 {
		// The kernel knows its connection in a LimitedReader, but in no deeper one.
		piece := io.LimitedReader{R: whole.R, N: min(next, whole.N)}
		size := piece.N
		moved, err := io.Copy(dst, &piece)
		told(int(moved))
		n += moved
		whole.N -= moved
		if err != nil || moved < size {
			return n, err
		}
		next = min(max(minPiece, n/8), maxPiece)
	}
	return n, nil
}

// byKernel reports whether the kernel may be able to copy.
func byKernel(dst io.Writer, src io.Reader) bool {
	_, from := src.(syscall.Conn)
	_, to := dst.(io.ReaderFrom)
	return from && to
}
