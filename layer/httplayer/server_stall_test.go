package httplayer

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pieceConn notes how much each Write is.
type pieceConn struct {
	net.Conn
	pieces []int
}

func (c *pieceConn) Write(p []byte) (int, error) {
	c.pieces = append(c.pieces, len(p))
	return len(p), nil
}

// One large write of a handler is not cut because all of it takes longer than a
// piece may.
func TestServerWritesInPieces(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	sink := &pieceConn{Conn: here}
	c := newAccepted(t.Context(), NewServer(http.NotFoundHandler()), sink)
	defer c.cancel()
	n, err := c.Write(make([]byte, 2*atOnce+7))
	require.NoError(t, err)
	assert.Equal(t, 2*atOnce+7, n)
	assert.Equal(t, []int{atOnce, atOnce, 7}, sink.pieces)
}

// copyingConn notes what it is to copy, and copies it.
type copyingConn struct {
	net.Conn
	from  []io.Reader
	sizes []int64
}

func (c *copyingConn) ReadFrom(r io.Reader) (int64, error) {
	if limited, ok := r.(*io.LimitedReader); ok {
		c.from, c.sizes = append(c.from, limited.R), append(c.sizes, limited.N)
	}
	return io.Copy(io.Discard, r)
}

// The kernel copies a file of which http.ServeContent has a LimitedReader, as
// the connection finds the file itself, and no other reader.
func TestServerHasFilesCopied(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	const size = 3*atOnce + 7
	for name, tt := range map[string]struct {
		limit int64
		sizes []int64
	}{
		"some of it":      {2*atOnce + 5, []int64{atOnce, atOnce, 5}},
		"whole pieces":    {2 * atOnce, []int64{atOnce, atOnce}},
		"nothing":         {0, nil},
		"more than it is": {1 << 40, []int64{atOnce, atOnce, atOnce, atOnce}},
		"no limit":        {-1, []int64{atOnce, atOnce, atOnce, atOnce}},
	} {
		t.Run(name, func(t *testing.T) {
			sink := &copyingConn{Conn: here}
			c := newAccepted(t.Context(), NewServer(http.NotFoundHandler()), sink)
			defer c.cancel()
			file := bytes.NewReader(make([]byte, size))
			limited := &io.LimitedReader{R: file, N: tt.limit}
			from, want := io.Reader(limited), min(tt.limit, size)
			if tt.limit < 0 {
				from, want = file, size
			}
			n, err := c.ReadFrom(from)
			require.NoError(t, err)
			assert.Equal(t, want, n)
			assert.Equal(t, want, c.received.Load())
			assert.Equal(t, tt.sizes, sink.sizes)
			for _, r := range sink.from {
				assert.Same(t, file, r)
			}
			if tt.limit >= 0 {
				assert.Equal(t, tt.limit-want, limited.N)
			}
			assert.EqualValues(t, size-want, file.Len(), "nothing was read too much")
		})
	}
}
