package httplayer

import (
	"net"
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
	c := newAccepted(t.Context(), NewServer(nil), sink)
	defer c.cancel()
	n, err := c.Write(make([]byte, 2*atOnce+7))
	require.NoError(t, err)
	assert.Equal(t, 2*atOnce+7, n)
	assert.Equal(t, []int{atOnce, atOnce, 7}, sink.pieces)
}
