package layertest

import (
	"bytes"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestStreamModel compares random operations on a stream with a buffer. It skips
// operations that would block.
func TestStreamModel(t *testing.T) {
	past := time.Unix(1, 0)
	rapid.Check(t, func(t *rapid.T) {
		s := newStream()
		var model bytes.Buffer
		var halfClosed, dropped, broken, lateRead, lateWrite bool
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				p := rapid.SliceOfN(rapid.Byte(), 0, 4096).Draw(t, "data")
				writable := !halfClosed && !lateWrite && !broken && !dropped
				if writable && model.Len()+len(p) > window {
					t.Skip("would block")
				}
				n, err := s.write(p)
				switch {
				case halfClosed:
					require.Equal(t, errHalfClosed, err)
				case lateWrite:
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				case broken:
					require.ErrorIs(t, err, syscall.ECONNRESET)
				case dropped:
					require.ErrorIs(t, err, syscall.EPIPE)
				default:
					require.NoError(t, err)
					require.Equal(t, len(p), n)
					model.Write(p)
				}
				if !writable {
					require.Zero(t, n)
				}
			},
			"read": func(t *rapid.T) {
				p := make([]byte, rapid.IntRange(0, 4096).Draw(t, "size"))
				if !dropped && !lateRead && !broken && !halfClosed && model.Len() == 0 && len(p) > 0 {
					t.Skip("would block")
				}
				n, err := s.read(p)
				switch {
				case dropped:
					require.ErrorIs(t, err, net.ErrClosed)
				case lateRead:
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				case broken:
					require.ErrorIs(t, err, syscall.ECONNRESET)
				case len(p) == 0:
					require.NoError(t, err)
				case model.Len() == 0:
					require.Equal(t, io.EOF, err)
				default:
					require.NoError(t, err)
					require.Equal(t, model.Next(len(p)), p[:n])
				}
			},
			"deadline": func(t *rapid.T) {
				lateRead, lateWrite = rapid.Bool().Draw(t, "read"), rapid.Bool().Draw(t, "write")
				at := map[bool]time.Time{true: past, false: {}}
				s.setDeadline(&s.reader, at[lateRead])
				s.setDeadline(&s.writer, at[lateWrite])
			},
			"end": func(t *rapid.T) {
				switch rapid.IntRange(0, 30).Draw(t, "how") {
				case 0:
					halfClosed = true
					require.True(t, s.stopWriting(errHalfClosed))
				case 1:
					require.Equal(t, !dropped, s.stopReading())
					dropped = true
					lateRead = false
				case 2:
					broken = true
					s.reset()
				}
			},
			"": func(t *rapid.T) { require.LessOrEqual(t, s.data.Len(), window) },
		})
	})
}
