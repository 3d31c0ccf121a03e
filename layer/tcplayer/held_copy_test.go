package tcplayer

import (
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
)

// hidden is a connection that hides all methods but those of net.Conn.
type hidden struct{ net.Conn }

func TestUntilClosedFirstByteOfCopy(t *testing.T) {
	for name, hide := range map[string]bool{"TCP": false, "any": true} {
		t.Run(name, func(t *testing.T) {
			var s seen
			near, far := conntest.Pair(t)
			var of net.Conn = near
			if hide {
				of = hidden{near}
			}
			conn := UntilClosed(t.Context(), of, &s)
			out := make(chan string)
			go func() {
				var b strings.Builder
				_, err := io.Copy(&b, conn)
				assert.NoError(t, err)
				out <- b.String()
			}()
			io.WriteString(far, "first")
			require.Eventually(t, func() bool { _, calls := s.heard(); return calls == 1 }, 10*time.Second, time.Millisecond)
			io.WriteString(far, strings.Repeat("more", 10_000))
			far.Close()
			assert.Equal(t, "first"+strings.Repeat("more", 10_000), <-out)
			n, calls := s.heard()
			assert.Equal(t, 40_005, n)
			assert.Equal(t, 2, calls)
			assert.Empty(t, s.ended(), "the direction of ours is open")
			if hide {
				conn.Close()
			} else {
				closeWrite(conn)
			}
			assert.Equal(t, []error{nil}, s.ended())
		})
	}
}

func TestUntilClosedCopyFails(t *testing.T) {
	for name, hide := range map[string]func(net.Conn) net.Conn{
		"TCP": func(c net.Conn) net.Conn { return c }, "any": func(c net.Conn) net.Conn { return hidden{c} },
	} {
		t.Run(name, func(t *testing.T) {
			var s seen
			near, far := conntest.Pair(t)
			reset(far)
			_, err := io.Copy(io.Discard, UntilClosed(t.Context(), hide(near), &s))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.Len(t, s.ended(), 1, "it was in the first part")
			require.ErrorIs(t, s.ended()[0], syscall.ECONNRESET)
		})
	}
}

func TestUntilClosedEmptyCopy(t *testing.T) {
	t.Run("nothing comes", func(t *testing.T) {
		for _, hide := range []bool{false, true} {
			var s seen
			near, far := conntest.Pair(t)
			var of net.Conn = near
			if hide {
				of = hidden{near}
			}
			conn := UntilClosed(t.Context(), of, &s)
			far.Close()
			n, err := io.Copy(io.Discard, conn)
			require.NoError(t, err)
			assert.Zero(t, n)
			bytes, _ := s.heard()
			assert.Zero(t, bytes)
			conn.Close()
			assert.Equal(t, []error{nil}, s.ended())
		}
	})
	t.Run("failed write", func(t *testing.T) {
		var s seen
		near, far := conntest.Pair(t)
		conn := UntilClosed(t.Context(), near, &s)
		io.WriteString(far, "hello")
		closed, _ := conntest.Pair(t)
		closed.Close()
		_, err := io.Copy(closed, conn)
		require.ErrorIs(t, err, net.ErrClosed)
		assert.Empty(t, s.ended(), "it was the other one that failed")
	})
}

// Splice needs the *net.TCPConn of both sides.
func TestUntilClosedSplice(t *testing.T) {
	var s seen
	near, far := conntest.Pair(t)
	log := &fast{TCPConn: near}
	conn := UntilClosed(t.Context(), log, &s)
	other, source := conntest.Pair(t)
	io.WriteString(source, "hello")
	source.Close()
	n, err := io.Copy(conn, other)
	require.NoError(t, err)
	assert.EqualValues(t, 5, n)
	assert.Equal(t, []string{"ReadFrom net.tcpConnWithoutWriteTo"}, log.did)

	_, err = io.ReadFull(far, make([]byte, 5))
	require.NoError(t, err)
	log.did = nil
	io.WriteString(far, "hello")
	far.Close()
	to, _ := conntest.Pair(t)
	n, err = io.Copy(UntilClosed(t.Context(), to, &seen{}), conn)
	require.NoError(t, err)
	assert.EqualValues(t, 5, n)
	assert.Equal(t, []string{"WriteTo *tcplayer.observedConn"}, log.did)
}

// fast records the ways of copying.
type fast struct {
	*net.TCPConn
	did []string
}

func (f *fast) ReadFrom(r io.Reader) (int64, error) {
	f.did = append(f.did, fmt.Sprintf("ReadFrom %T", r))
	return f.TCPConn.ReadFrom(r)
}

func (f *fast) WriteTo(w io.Writer) (int64, error) {
	f.did = append(f.did, fmt.Sprintf("WriteTo %T", w))
	return f.TCPConn.WriteTo(w)
}
