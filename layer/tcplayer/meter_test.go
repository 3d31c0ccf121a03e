package tcplayer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// gauges are readable instruments by name, "closed" with the errno.
type gauges struct {
	mu   sync.Mutex
	n    map[string]int
	with int
}

func newGauges() *gauges { return &gauges{n: map[string]int{}} }

func (g *gauges) instruments() Instruments {
	return Instruments{
		Opened: instrument{g, "opened"}, Open: level{instrument{g, "open"}}, Closed: instrument{g, "closed"},
		Read: instrument{g, "read"}, Written: instrument{g, "written"},
	}
}

func (g *gauges) of(name string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n[name]
}

func (g *gauges) all() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string]int{}
	for name, n := range g.n {
		if n != 0 {
			all[name] = n
		}
	}
	return all
}

type instrument struct {
	of   *gauges
	name string
}

func (i instrument) Add(delta float64) {
	i.of.mu.Lock()
	defer i.of.mu.Unlock()
	i.of.n[i.name] += int(delta)
}

func (i instrument) Set(float64) {}

func (i instrument) bound(labels []string) instrument {
	i.of.mu.Lock()
	defer i.of.mu.Unlock()
	i.of.with++
	return instrument{i.of, i.name + fmt.Sprint(labels)}
}

func (i instrument) With(labels ...string) metrics.Counter { return i.bound(labels) }

// gauge and counter differ only in With.
type level struct{ instrument }

func (l level) With(labels ...string) metrics.Gauge { return level{l.bound(labels)} }

func (g *gauges) meter() *Meter {
	i := g.instruments()
	return NewMeter(i)
}

func TestMeterCounts(t *testing.T) {
	one := make([]byte, 1)
	for name, tt := range map[string]struct {
		do   func(near net.Conn, far *net.TCPConn)
		want map[string]int
	}{
		"open":    {func(net.Conn, *net.TCPConn) {}, map[string]int{"open": 1, "opened": 1}},
		"closed":  {func(near net.Conn, _ *net.TCPConn) { near.Close(); near.Close() }, map[string]int{"opened": 1, "closed[errno ]": 1}},
		"read":    {func(near net.Conn, far *net.TCPConn) { far.Write(make([]byte, 5)); io.ReadFull(near, make([]byte, 5)) }, map[string]int{"open": 1, "opened": 1, "read": 5}},
		"written": {func(near net.Conn, _ *net.TCPConn) { near.Write(make([]byte, 7)) }, map[string]int{"open": 1, "opened": 1, "written": 7}},
		"their end": {func(near net.Conn, far *net.TCPConn) { far.Close(); near.Read(one) },
			map[string]int{"open": 1, "opened": 1}},
		"reset": {func(near net.Conn, far *net.TCPConn) { reset(far); near.Read(one); near.Close() },
			map[string]int{"opened": 1, "closed[errno ECONNRESET]": 1}},
		"reset in a copy": {func(near net.Conn, far *net.TCPConn) { reset(far); io.Copy(io.Discard, near); near.Close() },
			map[string]int{"opened": 1, "closed[errno ECONNRESET]": 1}},
		"written to after our end": {func(near net.Conn, _ *net.TCPConn) { closeWrite(near); near.Write(one) },
			map[string]int{"opened": 1, "closed[errno EPIPE]": 1}},
		"a deadline": {func(near net.Conn, _ *net.TCPConn) {
			near.SetDeadline(time.Unix(1, 0))
			near.Read(one)
			near.Write(one)
		},
			map[string]int{"open": 1, "opened": 1}},
		"read after close": {func(near net.Conn, _ *net.TCPConn) { near.Close(); near.Read(one); near.Write(one) },
			map[string]int{"opened": 1, "closed[errno ]": 1}},
		"reset by us": {func(near net.Conn, _ *net.TCPConn) { reset(near) }, map[string]int{"opened": 1, "closed[errno ]": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGauges()
			near, far := conntest.Pair(t)
			tt.do(g.meter().Conn(near), far)
			assert.Equal(t, tt.want, g.all())
		})
	}
}

// The error label of an instrument is bound once.
func TestMeterBindsErrorsOnce(t *testing.T) {
	g := newGauges()
	m := g.meter()
	for range 3 {
		near, far := conntest.Pair(t)
		conn := m.Conn(near)
		reset(far)
		conn.Read(make([]byte, 1))
		near, _ = conntest.Pair(t)
		m.Conn(near).Close()
	}
	assert.Equal(t, map[string]int{"opened": 6, "closed[errno ]": 3, "closed[errno ECONNRESET]": 3}, g.all())
	assert.Equal(t, 2, g.with)
	NewMeter(Instruments{}).Conn(&net.TCPConn{}).Close()
}

// layings are the ways to nest counted connections.
func layings(t *testing.T, g *gauges) map[string]func(conn net.Conn) net.Conn {
	t.Helper()
	return map[string]func(net.Conn) net.Conn{
		"bare":      g.meter().Conn,
		"addressed": func(c net.Conn) net.Conn { return OverrideAddrs(g.meter().Conn(c), ofClient, ofServer) },
		"over addressed": func(c net.Conn) net.Conn {
			return g.meter().Conn(OverrideAddrs(c, netip.AddrPort{}, ofServer))
		},
		"held":      func(c net.Conn) net.Conn { return UntilClosed(t.Context(), g.meter().Conn(c), &seen{}) },
		"over held": func(c net.Conn) net.Conn { return g.meter().Conn(UntilClosed(t.Context(), c, &seen{})) },
		"hidden":    func(c net.Conn) net.Conn { return g.meter().Conn(halves{hidden{c}}) },
	}
}

// Forward counts every byte on both sides for each way of copying.
func TestMeterCountsForwarded(t *testing.T) {
	up, down := bytes.Repeat([]byte("u"), 3<<20+11), bytes.Repeat([]byte("d"), 2<<20+5)
	for name := range layings(t, newGauges()) {
		for _, opts := range [][]ForwardOption{nil, {inProcess()}} {
			t.Run(fmt.Sprint(name, len(opts)), func(t *testing.T) {
				src, dst := newGauges(), newGauges()
				client, accepted := conntest.Pair(t)
				made, server := conntest.Pair(t)
				done := make(chan error, 1)
				go func() {
					traffic, err := Forward(to(layings(t, dst)[name](made)), opts...).Call(t.Context(), layings(t, src)[name](accepted))
					assert.Equal(t, ByteCount{Sent: int64(len(up)), Received: int64(len(down))}, traffic)
					done <- err
				}()
				go func() {
					client.Write(up)
					client.CloseWrite()
				}()
				got, err := io.ReadAll(server)
				require.NoError(t, err)
				require.True(t, bytes.Equal(up, got))
				go func() {
					server.Write(down)
					server.CloseWrite()
				}()
				got, err = io.ReadAll(client)
				require.NoError(t, err)
				require.True(t, bytes.Equal(down, got))
				require.NoError(t, <-done)
				assert.Equal(t, map[string]int{"opened": 1, "closed[errno ]": 1, "read": len(up), "written": len(down)}, src.all())
				assert.Equal(t, map[string]int{"opened": 1, "closed[errno ]": 1, "read": len(down), "written": len(up)}, dst.all())
			})
		}
	}
}

// The bytes of an open connection are counted before its end.
func TestMeterCountsOpenConnections(t *testing.T) {
	src, dst := newGauges(), newGauges()
	client, accepted := conntest.Pair(t)
	made, server := conntest.Pair(t)
	done := make(chan error, 1)
	go func() {
		_, err := Forward(to(dst.meter().Conn(made))).Call(t.Context(), src.meter().Conn(accepted))
		done <- err
	}()
	for _, size := range []int{maxPiece, 9 * maxPiece} {
		go client.Write(make([]byte, size))
		_, err := io.ReadFull(server, make([]byte, size))
		require.NoError(t, err)
		behind := func(n int) bool { return n >= size-maxPiece && n > 0 }
		require.Eventually(t, func() bool { return behind(src.of("read")) && behind(dst.of("written")) }, 20*time.Second, time.Millisecond)
	}
	assert.Equal(t, 1, src.of("open"))
	client.Close()
	server.Close()
	require.NoError(t, <-done)
}

// The error is recorded for the side that failed.
func TestMeterErrorSide(t *testing.T) {
	if name := "/proc/self"; !exists(name) {
		t.Skip("which side it was is known on Linux alone")
	}
	for _, broken := range []string{"client", "server"} {
		t.Run(broken, func(t *testing.T) {
			src, dst := newGauges(), newGauges()
			client, accepted := conntest.Pair(t)
			made, server := conntest.Pair(t)
			done := make(chan error, 1)
			go func() {
				_, err := Forward(to(dst.meter().Conn(made))).Call(t.Context(), src.meter().Conn(accepted))
				done <- err
			}()
			io.WriteString(client, "x")
			_, err := io.ReadFull(server, make([]byte, 1))
			require.NoError(t, err)
			clean, other := src, dst
			if broken == "client" {
				clean, other = dst, src
				reset(client)
			} else {
				reset(server)
			}
			require.ErrorIs(t, <-done, syscall.ECONNRESET)
			assert.Equal(t, 1, other.of("closed[errno ECONNRESET]"))
			assert.Equal(t, 1, clean.of("closed[errno ]"))
			assert.Zero(t, src.of("open")+dst.of("open"))
		})
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// The limit of a reader applies across pieces.
func TestMeterReaderLimit(t *testing.T) {
	for _, limit := range []int64{0, 1, maxPiece, maxPiece + 1, 3 * maxPiece, math.MaxInt64} {
		src, dst := conntest.Pair(t)
		far, near := conntest.Pair(t)
		const size = 2*maxPiece + 3
		go func() {
			src.Write(make([]byte, size))
			src.Close()
		}()
		go io.Copy(io.Discard, far)
		told := 0
		lr := &io.LimitedReader{R: dst, N: limit}
		n, err := copyCounted(near, lr, func(n int) { told += n })
		require.NoError(t, err)
		assert.Equal(t, min(limit, size), n)
		assert.EqualValues(t, n, told)
		assert.Equal(t, limit-n, lr.N)
	}
}

func TestMeterLayers(t *testing.T) {
	g := newGauges()
	m := g.meter()
	_, accepted := conntest.Pair(t)
	_, err := m.WrapServer(rejecting()).Call(t.Context(), accepted)
	require.ErrorIs(t, err, layer.ErrNotReady)
	assert.Equal(t, map[string]int{"opened": 1, "closed[errno ]": 1}, g.all(), "it was here, and is gone")
	_, err = accepted.Write([]byte("x"))
	require.NoError(t, err, "it is open and may go elsewhere")

	left := serverFunc(func(_ context.Context, conn net.Conn) (ByteCount, error) {
		assert.Equal(t, 1, g.of("open"))
		return ByteCount{}, nil
	})
	_, err = m.WrapServer(left).Call(t.Context(), accepted)
	require.NoError(t, err)
	assert.Zero(t, g.of("open"), "a connection that was not closed has ended")

	g = newGauges()
	dial := func(conn net.Conn, err error) func(context.Context, string, string) (net.Conn, error) {
		return g.meter().WrapDial(func(context.Context, string, string) (net.Conn, error) { return conn, err })
	}
	conn, err := dial(accepted, nil)(t.Context(), "tcp", addr)
	require.NoError(t, err)
	assert.Equal(t, 1, g.of("open"))
	conn.Close()
	why := errors.New("no way")
	_, err = dial(nil, why)(t.Context(), "tcp", addr)
	require.ErrorIs(t, err, why)
	assert.Equal(t, map[string]int{"opened": 1, "closed[errno ]": 1}, g.all())

	mock := &layertest.Mock[net.Conn, ByteCount]{}
	assert.Equal(t, "meter\nlayertest.Mock\n", layer.Describe(m.WrapServer(mock)).String())
	require.ErrorIs(t, layer.Poll(m.WrapServer(mock)), layer.ErrNotReady)
}

// Detection works on a metered connection.
func TestMeterDetect(t *testing.T) {
	g := newGauges()
	svc := g.meter().WrapServer(Detect(all3()))
	ways(t, func(t *testing.T, pair func() (*net.TCPConn, net.Conn)) {
		client, accepted := pair()
		go svc.Call(t.Context(), accepted)
		io.WriteString(client, "GET / HTTP/1.1\r\n\r\n")
		client.CloseWrite()
		got, err := io.ReadAll(client)
		require.NoError(t, err)
		assert.Equal(t, "one: GET / HTTP/1.1\r\n\r\n", string(got))
	})
	require.Eventually(t, func() bool { return g.of("open") == 0 }, 20*time.Second, time.Millisecond)
	assert.Equal(t, 4*len("GET / HTTP/1.1\r\n\r\n"), g.of("read"), "once")
	assert.Equal(t, 4*len("one: GET / HTTP/1.1\r\n\r\n"), g.of("written"))

	client, _, accepted := agreement(t, TransportProtocol)
	conn := g.meter().Conn(UntilClosed(t.Context(), g.meter().Conn(accepted), &seen{}))
	state, ok := TLSState(conn)
	assert.True(t, ok)
	assert.Equal(t, TransportProtocol, state.NegotiatedProtocol)
	near, _ := conntest.Pair(t)
	require.True(t, isTCP(withoutMeter(g.meter().Conn(g.meter().Conn(near)))))
	dst, ok := OriginalDst(g.meter().Conn(OverrideAddrs(near, ofClient, ofServer)))
	assert.True(t, ok)
	assert.Equal(t, ofServer, dst)
	client.Close()
}

func isTCP(conn net.Conn) bool {
	_, ok := conn.(*net.TCPConn)
	return ok
}

func TestErrnoOf(t *testing.T) {
	assert.Empty(t, errnoOf(io.EOF))
	assert.Equal(t, "ETIMEDOUT", errnoOf(fmt.Errorf("x: %w", syscall.ETIMEDOUT)))
	assert.NotEmpty(t, errnoOf(syscall.Errno(4095)))
	a, b := net.Pipe()
	assert.False(t, isClosed(a))
	b.Close()
	closed, _ := conntest.Pair(t)
	closed.Close()
	assert.False(t, isClosed(closed))
}

func TestMeterConforms(t *testing.T) {
	type svc = *endable[Request, net.Conn]
	layertest.Run(t, layertest.ServiceOf[Request, net.Conn]{
		New: func(ctx context.Context) Service {
			h := newHome(ctx)
			dial := func(of context.Context, network, addr string) (net.Conn, error) {
				conn, err := h.DialContext(of, network, addr)
				if err == nil { // the test closes it
					context.AfterFunc(ctx, func() { conn.Close() })
				}
				return conn, err
			}
			live, end := context.WithCancel(ctx)
			return &endable[Request, net.Conn]{h.endpoint(live, NewMeter(Instruments{}).WrapDial(dial)), h, end}
		},
		Request: func(int) Request { return Request{} },
		Fill:    func(s Service) func() { return fill(s.(svc).home, s, Request{}) },
		Close:   func(s Service) { s.(svc).end() },
	})
}

// BenchmarkMeter moves a megabyte from a client to a server through a Forward,
// with and without metered connections.
func BenchmarkMeter(b *testing.B) {
	for name, count := range map[string]func(net.Conn) net.Conn{
		"bare": func(c net.Conn) net.Conn { return c }, "metered": NewMeter(Instruments{}).Conn,
	} {
		b.Run(name, func(b *testing.B) {
			client, accepted := conntest.Pair(b)
			made, server := conntest.Pair(b)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = Forward(to(count(made))).Call(b.Context(), count(accepted))
			}()
			move(b, client, server)
			client.Close()
			server.Close()
			<-done
		})
	}
	b.Run("connection", func(b *testing.B) {
		m := NewMeter(Instruments{})
		near := &net.TCPConn{}
		b.ReportAllocs()
		for b.Loop() {
			_ = m.Conn(near).Close()
		}
	})
	b.Run("read", func(b *testing.B) {
		conn := NewMeter(Instruments{}).Conn(endless{})
		p := make([]byte, 8)
		b.ReportAllocs()
		for b.Loop() {
			_, _ = conn.Read(p)
		}
	})
}

func TestErrorKind(t *testing.T) {
	refusal := &layer.Error{Layer: "endpoint", Kind: layer.ErrNotReady, Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
	limit := &layer.Error{Layer: "limit", Kind: layer.ErrNotReady}
	near, _ := conntest.Pair(t)
	for want, errs := range map[string][]error{
		"":         {nil},
		"failfast": {&layer.Error{Layer: "queue", Kind: layer.ErrFailFast, Err: refusal}, consumedError("tls", near, &layer.Error{Layer: "queue", Kind: layer.ErrFailFast})},
		"loadshed": {limit, &layer.Error{Layer: "queue", Kind: layer.ErrNotReady}, consumedError("detect", near, limit)},
		"tls detection timeout": {
			&layer.Error{Layer: "tls", Kind: layer.ErrTimeout, Err: os.ErrDeadlineExceeded},
			fmt.Errorf("x: %w", &layer.Error{Layer: "serve", Err: &layer.Error{Layer: "tls", Kind: layer.ErrTimeout}}),
		},
		"i/o": {
			refusal, io.ErrUnexpectedEOF, syscall.ECONNRESET, &layer.Error{Layer: "forward", Err: &net.OpError{Op: "read", Err: errors.New("x")}},
			&layer.Error{Layer: "tls", Reason: "handshake", Err: tls.AlertError(42)}, consumedError("tls", near, refusal),
		},
		"unexpected": {
			errors.New("x"), &layer.Error{Layer: "tls", Kind: layer.ErrNoRoute}, &layer.Error{Layer: "origin", Kind: ErrLoop},
			&layer.Error{Layer: "limit", Kind: layer.ErrClosed}, &layer.Error{Layer: "forward", Kind: layer.ErrIdleTimeout},
			&layer.Error{Layer: "limit", Kind: layer.ErrNotReady, Err: context.Canceled},
		},
	} {
		for _, err := range errs {
			assert.Equal(t, want, ErrorKind(err), "%v", err)
		}
	}
}

func TestOnError(t *testing.T) {
	var got []string
	f := OnError(func(_ context.Context, conn net.Conn, err error) {
		dst, _ := OriginalDst(conn)
		got = append(got, dst.String()+" "+ErrorKind(err))
	})
	_, accepted := conntest.Pair(t)
	_, err := Transparent(FixedDst(ofServer), f(rejecting()), nil).Call(t.Context(), accepted)
	require.ErrorIs(t, err, layer.ErrNotReady)
	quiet := serverFunc(func(context.Context, net.Conn) (ByteCount, error) { return ByteCount{Sent: 1}, nil })
	traffic, err := f(quiet).Call(t.Context(), accepted)
	require.NoError(t, err)
	assert.EqualValues(t, 1, traffic.Sent)
	assert.Equal(t, []string{ofServer.String() + " loadshed"}, got)
	assert.Equal(t, "failures\nlayer.Func\n", layer.Describe(f(quiet)).String())
}
