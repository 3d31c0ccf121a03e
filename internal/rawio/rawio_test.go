//go:build unix && !portable

package rawio_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/internal/rawio"
)

func TestLargeTransferInBothDirections(t *testing.T) {
	a, b := conntest.Pair(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // more than the buffers of the kernel
	var wg sync.WaitGroup
	for _, c := range []*net.TCPConn{a, b} {
		s := rawio.New(c)
		wg.Go(func() {
			n, err := s.Write(want)
			assert.NoError(t, err)
			assert.Equal(t, len(want), n)
			assert.NoError(t, c.CloseWrite())
		})
		wg.Go(func() {
			got, err := io.ReadAll(s)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(want, got))
		})
	}
	wg.Wait()
}

// The errors are those of the connection itself.
func TestErrors(t *testing.T) {
	for name, spoil := range map[string]func(a, b *net.TCPConn){
		"closed":   func(a, _ *net.TCPConn) { a.Close() },
		"deadline": func(a, _ *net.TCPConn) { a.SetDeadline(time.Unix(1, 0)) },
		"reset": func(a, b *net.TCPConn) {
			b.SetLinger(0)
			b.Close()
			a.SetReadDeadline(time.Now().Add(time.Minute))
		},
		"end": func(a, b *net.TCPConn) { b.CloseWrite(); a.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			results := func(wrap func(net.Conn) io.ReadWriter) (texts [2]string, errs [2]error) {
				a, b := conntest.Pair(t)
				s := wrap(a)
				spoil(a, b)
				p := make([]byte, 1)
				_, errs[0] = s.Read(p)
				_, errs[1] = s.Write(p)
				from, to := a.LocalAddr().String(), a.RemoteAddr().String()
				for i, err := range errs {
					require.Error(t, err)
					texts[i] = string(bytes.ReplaceAll(bytes.ReplaceAll([]byte(err.Error()), []byte(from), []byte("A")), []byte(to), []byte("B")))
				}
				return texts, errs
			}
			want, wantErrs := results(func(c net.Conn) io.ReadWriter { return c })
			got, gotErrs := results(rawio.New)
			assert.Equal(t, want, got)
			for i := range gotErrs {
				var number, wantNumber syscall.Errno
				assert.Equal(t, errors.As(wantErrs[i], &wantNumber), errors.As(gotErrs[i], &number))
				assert.Equal(t, wantNumber, number)
				assert.Equal(t, errors.Is(wantErrs[i], io.EOF), errors.Is(gotErrs[i], io.EOF))
			}
		})
	}
}

// A Read and a Write that wait for the socket end when the connection is closed, also if a second
// call waits for the first.
func TestCloseEndsWaitingCalls(t *testing.T) {
	a, _ := conntest.Pair(t)
	s := rawio.New(a)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			_, err := s.Read(make([]byte, 1))
			assert.ErrorIs(t, err, net.ErrClosed)
		})
		wg.Go(func() {
			_, err := s.Write(make([]byte, 64<<20))
			assert.ErrorIs(t, err, net.ErrClosed)
		})
	}
	a.Close()
	wg.Wait()
}

func TestEmptyRead(t *testing.T) {
	a, _ := conntest.Pair(t)
	n, err := rawio.New(a).Read(nil)
	assert.Zero(t, n)
	assert.NoError(t, err)
}

func TestOtherConnIsReturned(t *testing.T) {
	a, _ := net.Pipe()
	assert.Equal(t, io.ReadWriter(a), rawio.New(a))
}

func TestNoAllocations(t *testing.T) {
	a, b := conntest.Pair(t)
	from, to := rawio.New(a), rawio.New(b)
	p := make([]byte, 8)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		_, err := from.Write(p)
		assert.NoError(t, err)
		_, err = io.ReadFull(to, p)
		assert.NoError(t, err)
	}))
}
