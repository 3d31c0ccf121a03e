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

	"github.com/gotower/gotower/internal/rawio"
	"github.com/gotower/gotower/layer"
)

// Instruments are the metrics of a [Meter]. Give each metric the values of all its labels
// by With, except for the label "errno" of Closed, which the Meter sets. A nil metric is
// not recorded.
type Instruments struct {
	Opened  metrics.Counter // number of connections that were opened
	Open    metrics.Gauge   // number of connections that are open now
	Closed  metrics.Counter // closed connections; label "errno": system error, such as ECONNRESET, or ""
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

// Meter counts connections and their bytes. Use one Meter for all connections with the same labels,
// because each Meter makes a new counter for each value of the label "errno". A Meter is safe for
// concurrent use. It ignores a panic of an instrument.
type Meter struct {
	to     Instruments
	clean  metrics.Counter // connections closed without a system error
	broken sync.Map        // a metrics.Counter for each errno
}

// NewMeter returns a Meter that records to the instruments in i.
func NewMeter(i Instruments) *Meter {
	i = i.orDiscard()
	return &Meter{to: i, clean: i.Closed.With("errno", "")}
}

// Conn returns a connection that wraps conn and counts its bytes. The connection counts as
// open until Close or a system error.
//
// The result has ReadFrom, WriteTo and CloseWrite, so that the kernel can still copy
// between two TCP connections. During such a copy the count of bytes is late by up to 256
// KiB. If a copy fails on Linux because conn was reset or timed out, conn counts as closed
// with that system error. On other systems it then counts as open until Close. NetConn
// returns conn.
func (m *Meter) Conn(conn net.Conn) net.Conn { return m.open(conn) }

func (m *Meter) open(conn net.Conn) *meteredConn {
	count(m.to.Opened, 1)
	count(m.to.Open, 1)
	return &meteredConn{Conn: conn, io: rawio.New(conn), meter: m}
}

func (m *Meter) closed(errno string) {
	defer count(m.to.Open, -1)       // after all other metrics
	defer func() { _ = recover() }() // With may panic, too
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

// count adds n to a metric. It recovers a panic of the metric, because the panic could
// otherwise end any goroutine that reads from the connection.
func count(to interface{ Add(delta float64) }, n float64) {
	defer func() { _ = recover() }()
	to.Add(n)
}

// WrapServer is a [layer.Layer] that counts the accepted connections and their bytes.
//
// Admission: Ready is forwarded. A rejected connection counts as opened and closed.
//
// Cancellation: ctx is forwarded.
//
// Body: a connection counts as closed when Call returns.
//
// Errors: errors of next are returned unchanged.
//
// Cost: one allocation, and the calls of the instruments.
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
	defer counted.countEnd("")
	return s.Server.Call(ctx, counted)
}

func (s *meteredServer) Next() Server { return s.Server }

func (s *meteredServer) Describe() layer.Node { return layer.Node{Name: "meter"} }

// WrapDial returns a function that makes connections with the function dial, and counts them and
// their bytes. It is for [WithDialContext] or the field Dial of a [Dialer].
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

// meteredConn wraps a connection for a Meter and counts its bytes and its end. It buffers no bytes.
type meteredConn struct {
	net.Conn
	io    io.ReadWriter // reads and writes Conn
	meter *Meter
	ended atomic.Bool // the connection was counted as closed
}

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
	n, err := m.io.Read(p)
	m.Transferred(n, 0, err)
	return n, err
}

func (m *meteredConn) Write(p []byte) (int, error) {
	n, err := m.io.Write(p)
	m.Transferred(0, n, err)
	return n, err
}

func (m *meteredConn) Close() error {
	m.countEnd("")
	return m.Conn.Close()
}

// WriteTo is part of [io.WriterTo]. It copies to w until EOF and counts the bytes.
func (m *meteredConn) WriteTo(w io.Writer) (int64, error) {
	n, err := io.Copy(&countingWriter{w, m.read}, m.Conn)
	m.copied(err)
	return n, err
}

func (m *meteredConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := copyCounted(m.Conn, r, m.written)
	m.copied(err)
	return n, err
}

// CloseWrite closes the sending half of the connection.
func (m *meteredConn) CloseWrite() error { return closeWrite(m.Conn) }

func (m *meteredConn) NetConn() net.Conn { return m.Conn }

// Transferred counts bytes that the caller has read from and written to the socket
// directly, without the methods of the connection. The argument err is nil or the error of
// the last operation.
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

// countEnd counts the connection as closed, with errno as the value of the label "errno".
// Only the first call has an effect.
func (m *meteredConn) countEnd(errno string) {
	if !m.ended.Load() && !m.ended.Swap(true) {
		m.meter.closed(errno)
	}
}

// failed counts the connection as closed if err is a system error. Other errors, for
// example an exceeded deadline, do not change the count.
func (m *meteredConn) failed(err error) {
	if name := errnoOf(err); name != "" {
		m.countEnd(name)
	}
}

// copied counts the connection as closed if a copy failed with err because of this
// connection. It checks the state of the connection, because err may also come from the
// other one.
func (m *meteredConn) copied(err error) {
	if err != nil && errnoOf(err) != "" && isClosed(m.Conn) {
		m.failed(err)
	}
}

// countingWriter calls report with the number of bytes of each write.
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

// maxPiece is the largest number of bytes that the kernel copies between two reports.
const maxPiece = 256 << 10

// copyCounted copies like io.Copy and calls report with the number of bytes of each part.
func copyCounted(dst io.Writer, src io.Reader, report func(n int)) (n int64, err error) {
	whole, limited := src.(*io.LimitedReader)
	if !limited {
		whole = &io.LimitedReader{R: src, N: math.MaxInt64}
	}
	if !byKernel(dst, whole.R) {
		// Hide all methods that would copy without a report.
		return io.Copy(struct{ io.Writer }{&countingWriter{dst, report}}, struct{ io.Reader }{src})
	}
	for whole.N > 0 {
		// The kernel copies from a connection in one LimitedReader, but not in two.
		piece := io.LimitedReader{R: whole.R, N: min(maxPiece, whole.N)}
		size := piece.N
		moved, err := io.Copy(dst, &piece)
		report(int(moved))
		n += moved
		whole.N -= moved
		if err != nil || moved < size {
			return n, err
		}
	}
	return n, nil
}

// byKernel reports whether the types of dst and src allow the kernel to copy between them.
func byKernel(dst io.Writer, src io.Reader) bool {
	_, from := src.(syscall.Conn)
	_, to := dst.(io.ReaderFrom)
	return from && to
}
