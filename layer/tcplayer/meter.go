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

// Instruments are the metrics for a [Meter]. You should bind all labels with With, except for
// "errno" in Closed, which the Meter sets. A nil metric is not recorded.
type Instruments struct {
	Opened  metrics.Counter // number of connections that were opened
	Open    metrics.Gauge   // number of connections that are open now
	Closed  metrics.Counter // closed connections; label "errno": system error, such as ECONNRESET, or ""
	Read    metrics.Counter // bytes from the peer
	Written metrics.Counter // bytes to the peer
}

// orDiscard returns i with metrics that do nothing in place of nil.
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

// Meter counts connections and their bytes. You should use one Meter for all connections with the
// same labels, because each Meter makes a new counter for each value of the label "errno". A Meter
// is safe for concurrent use. It ignores panics in instruments.
type Meter struct {
	instruments Instruments
	clean       metrics.Counter // connections closed without a system error
	broken      sync.Map        // a metrics.Counter for each errno
}

// NewMeter returns a Meter that records to the instruments in i.
func NewMeter(i Instruments) *Meter {
	i = i.orDiscard()
	return &Meter{instruments: i, clean: i.Closed.With("errno", "")}
}

// Conn returns a connection that wraps conn and counts its bytes. The connection counts as open
// until Close or a system error.
//
// The result implements ReadFrom, WriteTo and CloseWrite, so that the kernel can still copy
// between two TCP connections. During such a copy the bytes are counted late, by up to 256 KiB.
// If a copy fails on Linux because conn was reset or timed out, conn counts as closed with that
// system error. On other systems it then counts as open until Close. NetConn returns conn.
func (m *Meter) Conn(conn net.Conn) net.Conn { return m.open(conn) }

// open counts a connection as opened and wraps it.
func (m *Meter) open(conn net.Conn) *meteredConn {
	count(m.instruments.Opened, 1)
	count(m.instruments.Open, 1)
	return &meteredConn{Conn: conn, io: rawio.New(conn), meter: m}
}

// closed counts a connection as closed. errno is the system error that ended it, or "".
func (m *Meter) closed(errno string) {
	// Deferred calls run in reverse order, so Open changes last, also after a panic of another metric.
	defer count(m.instruments.Open, -1) // after all other metrics
	defer func() { _ = recover() }()    // With may panic, too
	if errno == "" {
		count(m.clean, 1)
		return
	}
	counter, ok := m.broken.Load(errno)
	// The label is bound once for each error.
	if !ok {
		counter, _ = m.broken.LoadOrStore(errno, m.instruments.Closed.With("errno", errno))
	}
	if broken, ok := counter.(metrics.Counter); ok {
		count(broken, 1)
	}
}

// count adds n to a metric. It recovers a panic of the metric, because the panic could
// otherwise end any goroutine that reads from the connection.
func count(metric interface{ Add(delta float64) }, n float64) {
	defer func() { _ = recover() }()
	metric.Add(n)
}

// WrapServer is a [layer.Layer] that counts the accepted connections and their bytes.
//
// Admission: Ready is forwarded. A rejected connection counts as opened and closed.
//
// Cancellation: ctx is forwarded.
//
// Body: a connection counts as closed when Call returns.
//
// Errors: errors from next are returned unchanged.
//
// Cost: one allocation, and the instruments' updates.
func (m *Meter) WrapServer(next Server) Server {
	notNil(next)
	return &meteredServer{next, m}
}

// meteredServer is the Server of WrapServer.
type meteredServer struct {
	Server
	meter *Meter
}

// Call counts conn while the wrapped Server serves it.
func (s *meteredServer) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	counted := s.meter.open(conn)
	defer counted.countEnd("")
	return s.Server.Call(ctx, counted)
}

// Next returns the wrapped Server.
func (s *meteredServer) Next() Server { return s.Server }

// Describe returns a node without state.
func (s *meteredServer) Describe() layer.Node { return layer.Node{Name: "meter"} }

// WrapDial returns a function that makes connections with dial, and counts them and their bytes. It
// is for [WithDialContext] or the field Dial of a [Dialer].
func (m *Meter) WrapDial(
	dial func(ctx context.Context, network, addr string) (net.Conn, error),
) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if dial == nil {
		panic("tcplayer: nil dial function")
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		// A nil connection without an error is the caller's to report.
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

// withoutMeter returns the connection below all meters around conn.
func withoutMeter(conn net.Conn) net.Conn {
	for {
		m, ok := conn.(*meteredConn)
		if !ok {
			return conn
		}
		conn = m.Conn
	}
}

// Read reads and counts the bytes.
func (m *meteredConn) Read(p []byte) (int, error) {
	n, err := m.io.Read(p)
	m.Transferred(n, 0, err)
	return n, err
}

// Write writes and counts the bytes.
func (m *meteredConn) Write(p []byte) (int, error) {
	n, err := m.io.Write(p)
	m.Transferred(0, n, err)
	return n, err
}

// Close counts the connection as closed and closes it.
func (m *meteredConn) Close() error {
	m.countEnd("")
	return m.Conn.Close()
}

// WriteTo implements [io.WriterTo]. It copies to w until EOF and counts the bytes.
func (m *meteredConn) WriteTo(w io.Writer) (int64, error) {
	// io.Copy uses ReadFrom of countingWriter, which counts while the kernel copies.
	n, err := io.Copy(&countingWriter{w, m.read}, m.Conn)
	m.copied(err)
	return n, err
}

// ReadFrom implements [io.ReaderFrom]. It copies from r until EOF and counts the bytes.
func (m *meteredConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := copyCounted(m.Conn, r, m.written)
	m.copied(err)
	return n, err
}

// CloseWrite closes the sending half of the connection.
func (m *meteredConn) CloseWrite() error { return closeWrite(m.Conn) }

// NetConn returns the wrapped connection.
func (m *meteredConn) NetConn() net.Conn { return m.Conn }

// Transferred counts bytes that the caller has read from and written to the socket directly,
// bypassing the connection. err is nil or the error from the last operation.
func (m *meteredConn) Transferred(read, written int, err error) {
	m.read(read)
	m.written(written)
	if err != nil {
		m.failed(err)
	}
}

// read counts n bytes from the peer.
func (m *meteredConn) read(n int) {
	if n > 0 {
		count(m.meter.instruments.Read, float64(n))
	}
}

// written counts n bytes to the peer.
func (m *meteredConn) written(n int) {
	if n > 0 {
		count(m.meter.instruments.Written, float64(n))
	}
}

// countEnd counts the connection as closed, with errno as the label. Only the first call counts.
func (m *meteredConn) countEnd(errno string) {
	// Load first, because it is cheaper than Swap.
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

// copied counts the connection as closed if a copy failed with err because of this connection. It
// checks the connection's state, because err may also come from the other one.
func (m *meteredConn) copied(err error) {
	if err != nil && errnoOf(err) != "" && isClosed(m.Conn) {
		m.failed(err)
	}
}

// countingWriter calls report with how many bytes were written each time.
type countingWriter struct {
	io.Writer
	report func(n int)
}

// Write writes and reports the number of bytes.
func (t *countingWriter) Write(p []byte) (int, error) {
	n, err := t.Writer.Write(p)
	t.report(n)
	return n, err
}

// ReadFrom copies from r and reports the bytes, so that io.Copy need not use Write.
func (t *countingWriter) ReadFrom(r io.Reader) (int64, error) {
	return copyCounted(t.Writer, r, t.report)
}

// maxPiece is the largest number of bytes that the kernel copies between two reports.
const maxPiece = 256 << 10

// copyCounted copies like io.Copy and calls report with the size of each part.
func copyCounted(dst io.Writer, src io.Reader, report func(n int)) (n int64, err error) {
	// io.Copy and http may pass a LimitedReader. Its limit must hold, and its N must be right
	// afterwards.
	whole, limited := src.(*io.LimitedReader)
	if !limited {
		// Without a limit, the largest one makes the code below the same for both cases.
		whole = &io.LimitedReader{R: src, N: math.MaxInt64}
	}
	if !byKernel(dst, whole.R) {
		// Hide all methods that would copy without a report.
		return io.Copy(struct{ io.Writer }{&countingWriter{dst, report}}, struct{ io.Reader }{src})
	}
	// A chunk at a time, so that a long copy is reported while it runs.
	for whole.N > 0 {
		// The kernel copies from a connection in one LimitedReader, but not in two.
		chunk := io.LimitedReader{R: whole.R, N: min(maxPiece, whole.N)}
		size := chunk.N
		moved, err := io.Copy(dst, &chunk)
		report(int(moved))
		n += moved
		whole.N -= moved
		// Fewer bytes than asked for mean the end of src.
		if err != nil || moved < size {
			return n, err
		}
	}
	return n, nil
}

// byKernel reports whether the types of dst and src allow the kernel to copy between them.
func byKernel(dst io.Writer, src io.Reader) bool {
	_, readable := src.(syscall.Conn)
	_, writable := dst.(io.ReaderFrom)
	return readable && writable
}
