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

// Instruments are the metrics of a [Meter], with their labels bound except for
// the documented one. A nil metric is not recorded.
type Instruments struct {
	Opened  metrics.Counter // all connections
	Open    metrics.Gauge   // open connections
	Closed  metrics.Counter // label "errno": "" or the name of the system error, such as ECONNRESET
	Read    metrics.Counter // bytes from the peer
	Written metrics.Counter // bytes to the peer
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

// Meter counts connections and their bytes. Make one Meter for each set of
// labels and reuse it, because it binds each errno label once. It is safe for
// concurrent use. It ignores a panic of an instrument.
type Meter struct {
	to     Instruments
	clean  metrics.Counter
	broken sync.Map // metrics.Counter by errno
}

// NewMeter returns a Meter that records to i.
func NewMeter(i Instruments) *Meter {
	i = i.orDiscard()
	return &Meter{to: i, clean: i.Closed.With("errno", "")}
}

// Conn counts conn as open until Close or a system error, and returns a
// connection that counts the bytes.
//
// The result has ReadFrom, WriteTo and CloseWrite, so that the kernel still
// copies between two TCP connections. The byte count is then behind by 64 KiB
// to 1 MiB. On Linux a failed copy counts for the connection that was closed;
// on other systems it counts for neither. NetConn returns conn.
func (m *Meter) Conn(conn net.Conn) net.Conn { return m.open(conn) }

func (m *Meter) open(conn net.Conn) *meteredConn {
	count(m.to.Opened, 1)
	count(m.to.Open, 1)
	return &meteredConn{Conn: conn, meter: m}
}

func (m *Meter) closed(errno string) {
	defer count(m.to.Open, -1)       // after all other metrics
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

// count ignores a panic of the instrument, because any goroutine may read from the connection.
func count(to interface{ Add(delta float64) }, n float64) {
	defer func() { _ = recover() }()
	to.Add(n)
}

// WrapServer is the layer that counts accepted connections.
//
// Admission: Ready is forwarded. A rejected connection counts as opened and closed.
//
// Cancellation: ctx is forwarded.
//
// Body: a connection counts as closed when Call returns.
//
// Errors: errors of next are returned unchanged.
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

// WrapDial returns a dial function that counts its connections, for
// [WithDialContext] or the Dial of a [Dialer].
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

// meteredConn counts a connection. It buffers no bytes.
type meteredConn struct {
	net.Conn
	meter *Meter
	ended atomic.Bool
}

// withoutMeter returns the connection inside the meteredConn wrappers.
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
	m.Transferred(n, 0, err)
	return n, err
}

func (m *meteredConn) Write(p []byte) (int, error) {
	n, err := m.Conn.Write(p)
	m.Transferred(0, n, err)
	return n, err
}

func (m *meteredConn) Close() error {
	m.over("")
	return m.Conn.Close()
}

// WriteTo copies to w until EOF.
func (m *meteredConn) WriteTo(w io.Writer) (int64, error) {
	n, err := io.Copy(&countingWriter{w, m.read}, m.Conn)
	m.copied(err)
	return n, err
}

// ReadFrom copies from r until EOF.
func (m *meteredConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := copyCounted(m.Conn, r, m.written)
	m.copied(err)
	return n, err
}

// CloseWrite ends the sending direction.
func (m *meteredConn) CloseWrite() error { return closeWrite(m.Conn) }

// NetConn returns the wrapped connection.
func (m *meteredConn) NetConn() net.Conn { return m.Conn }

// Transferred counts bytes that a user of the socket below has read and written. err is
// nil or the error of the last operation.
func (m *meteredConn) Transferred(read, written int, err error) {
	m.read(read)
	m.written(written)
	if err != nil {
		m.failed(err)
	}
}

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

// over counts the end once.
func (m *meteredConn) over(errno string) {
	if !m.ended.Load() && !m.ended.Swap(true) {
		m.meter.closed(errno)
	}
}

// failed counts the connection as ended if err is a system error. Other errors, such as an
// exceeded deadline, do not end a connection.
func (m *meteredConn) failed(err error) {
	if name := errnoOf(err); name != "" {
		m.over(name)
	}
}

// copied handles the error of a copy, which may come from the other connection.
func (m *meteredConn) copied(err error) {
	if err != nil && errnoOf(err) != "" && isClosed(m.Conn) {
		m.failed(err)
	}
}

// countingWriter reports each number of written bytes.
type countingWriter struct {
	io.Writer
	report func(n int)
}

func (t *countingWriter) Write(p []byte) (int, error) {
	n, err := t.Writer.Write(p)
	t.report(n)
	return n, err
}

func (t *countingWriter) ReadFrom(r io.Reader) (int64, error) {
	return copyCounted(t.Writer, r, t.report)
}

// Sizes of the copies between two reports: larger for a long transfer, so that
// reports stay cheap and the count stays close.
const (
	minPiece = 64 << 10
	maxPiece = 1 << 20
)

// copyCounted is io.Copy with reports.
func copyCounted(dst io.Writer, src io.Reader, report func(n int)) (n int64, err error) {
	whole, limited := src.(*io.LimitedReader)
	if !limited {
		whole = &io.LimitedReader{R: src, N: math.MaxInt64}
	}
	if !byKernel(dst, whole.R) {
		// Hide all methods that would copy without a report.
		return io.Copy(struct{ io.Writer }{&countingWriter{dst, report}}, struct{ io.Reader }{src})
	}
	next := int64(minPiece)
	if limited && whole.N <= maxPiece {
		next = whole.N
	}
	for whole.N > 0 {
		// The kernel copies from a connection in one LimitedReader, but not in two.
		piece := io.LimitedReader{R: whole.R, N: min(next, whole.N)}
		size := piece.N
		moved, err := io.Copy(dst, &piece)
		report(int(moved))
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
