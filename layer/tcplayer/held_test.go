package tcplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
)

// seen records the events of an observer.
type seen struct {
	mu    sync.Mutex
	bytes int
	calls int
	ends  []error
}

func (s *seen) Data(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += n
	s.calls++
}

func (s *seen) End(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, err)
}

func (s *seen) ended() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ends
}

// heard returns the number of bytes and of calls.
func (s *seen) heard() (bytes, calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes, s.calls
}

func TestUntilClosedEnds(t *testing.T) {
	one := make([]byte, 1)
	for name, tt := range map[string]struct {
		do   func(near net.Conn, far *net.TCPConn)
		ends []error
	}{
		"not at first":     {func(net.Conn, *net.TCPConn) {}, nil},
		"closed unread":    {func(near net.Conn, _ *net.TCPConn) { near.Close() }, []error{layer.ErrBodyClosedEarly}},
		"closed twice":     {func(near net.Conn, _ *net.TCPConn) { near.Close(); near.Close() }, []error{layer.ErrBodyClosedEarly}},
		"their end":        {func(near net.Conn, far *net.TCPConn) { far.Close(); near.Read(one) }, nil},
		"our end":          {func(near net.Conn, _ *net.TCPConn) { closeWrite(near) }, nil},
		"their end, close": {func(near net.Conn, far *net.TCPConn) { far.Close(); near.Read(one); near.Close() }, []error{nil}},
		"both ends": {func(near net.Conn, far *net.TCPConn) {
			closeWrite(near)
			far.Close()
			near.Read(one)
		}, []error{nil}},
		"both ends, other order, close": {func(near net.Conn, far *net.TCPConn) {
			far.CloseWrite()
			near.Read(one)
			closeWrite(near)
			near.Close()
		}, []error{nil}},
		"reset": {func(near net.Conn, far *net.TCPConn) {
			reset(far)
			near.Read(one)
			near.Close()
		}, []error{syscall.ECONNRESET}},
		"written to a reset one": {func(near net.Conn, far *net.TCPConn) {
			reset(far)
			for _, err := near.Write(one); err == nil; {
				_, err = near.Write(one)
			}
		}, []error{syscall.ECONNRESET}},
		"the holder's deadline": {func(near net.Conn, _ *net.TCPConn) {
			near.SetDeadline(time.Unix(1, 0))
			near.Read(one)
			near.Write(one)
		}, nil},
		"read after close": {func(near net.Conn, _ *net.TCPConn) {
			near.Close()
			near.Read(one)
		}, []error{layer.ErrBodyClosedEarly}},
	} {
		t.Run(name, func(t *testing.T) {
			var s seen
			near, far := conntest.Pair(t)
			tt.do(UntilClosed(t.Context(), near, &s), far)
			require.Len(t, s.ended(), len(tt.ends))
			for i, want := range tt.ends {
				assert.ErrorIs(t, s.ended()[i], want)
			}
		})
	}
}

// timedOut is the kernel's error for a peer that no longer responds. It matches
// a deadline, and ends the connection.
type timedOut struct{ net.Conn }

func (timedOut) Read([]byte) (int, error) {
	return 0, &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}
}

func TestUntilClosedPeerTimeout(t *testing.T) {
	var s seen
	near, _ := conntest.Pair(t)
	_, err := UntilClosed(t.Context(), timedOut{near}, &s).Read(nil)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.Len(t, s.ended(), 1)
	assert.ErrorIs(t, s.ended()[0], syscall.ETIMEDOUT)
}

func TestUntilClosedNil(t *testing.T) {
	var s seen
	assert.Nil(t, UntilClosed(t.Context(), nil, &s))
	assert.Equal(t, []error{nil}, s.ended())
}

func TestUntilClosedContext(t *testing.T) {
	why := fmt.Errorf("enough: %w", context.DeadlineExceeded)
	for name, read := range map[string]func(net.Conn) error{
		"Read":     func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err },
		"WriteTo":  func(c net.Conn) error { _, err := io.Copy(io.Discard, c); return err },
		"ReadFrom": func(c net.Conn) error { _, err := io.Copy(c, forever{}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			var s seen
			near, far := conntest.Pair(t)
			conn := UntilClosed(ctx, near, &s)
			failed := make(chan error)
			go func() { failed <- read(conn) }()
			time.AfterFunc(time.Millisecond, func() { cancel(why) })
			err := <-failed
			require.ErrorIs(t, err, why)
			require.ErrorIs(t, err, net.ErrClosed)
			var network net.Error
			require.ErrorAs(t, err, &network)
			assert.False(t, network.Timeout(), "it would be taken for a deadline of the holder's own")
			_, err = io.Copy(io.Discard, far)
			require.ErrorIs(t, err, syscall.ECONNRESET, "the peer must not take it for an end in good order")
			require.NoError(t, conn.Close())
			assert.Equal(t, []error{why}, s.ended())
		})
	}
}

type forever struct{}

func (forever) Read(p []byte) (int, error) { return len(p), nil }

func TestUntilClosedDoneContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	near, _ := conntest.Pair(t)
	first, second := make(endObserver, 1), make(endObserver, 1)
	conn := UntilClosed(ctx, near, first)
	assert.Same(t, conn, UntilClosed(ctx, conn, second))
	require.ErrorIs(t, <-first, context.Canceled)
	require.ErrorIs(t, <-second, context.Canceled)
}

// endObserver is an observer that waits for End.
type endObserver chan error

func (endObserver) Data(int)        {}
func (t endObserver) End(err error) { t <- err }

// order records the order in which observers end.
type order struct {
	seen
	n   int
	all *[]int
}

func (o *order) End(err error) {
	*o.all = append(*o.all, o.n)
	o.seen.End(err)
}

func TestUntilClosedTwice(t *testing.T) {
	var all []int
	observers := make([]*order, 5)
	near, far := conntest.Pair(t)
	conn := UntilClosed(t.Context(), near, &seen{})
	for i := range observers {
		observers[i] = &order{n: i, all: &all}
		require.Same(t, conn, UntilClosed(t.Context(), conn, observers[i]))
	}
	io.WriteString(far, "hello")
	far.Close()
	io.ReadAll(struct{ io.Reader }{conn})
	conn.Close()
	assert.Equal(t, []int{0, 1, 2, 3, 4}, all, "innermost first")
	for _, o := range observers {
		assert.Equal(t, 5, o.bytes)
		assert.Equal(t, []error{nil}, o.ended())
	}
	var late seen
	UntilClosed(t.Context(), conn, &late)
	assert.Equal(t, []error{nil}, late.ended())
}

func TestCloseWriteUnsupported(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	conn := UntilClosed(t.Context(), a, &seen{})
	defer conn.Close()
	require.ErrorIs(t, closeWrite(conn), errors.ErrUnsupported)
	assert.Same(t, a, conn.(interface{ NetConn() net.Conn }).NetConn())
}

// brittle panics at the end.
type brittle struct{}

func (brittle) Data(int)  {}
func (brittle) End(error) { panic("unforeseen") }

// After a panic of an observer the others are notified.
func TestUntilClosedPanic(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	outer := new(seen)
	conn := UntilClosed(t.Context(), ours, brittle{})
	conn = UntilClosed(t.Context(), conn, outer)
	require.Panics(t, func() { _ = conn.Close() })
	require.Len(t, outer.ends, 1)
}
