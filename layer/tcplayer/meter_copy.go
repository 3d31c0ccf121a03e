package tcplayer

import (
	"io"
	"math"
	"syscall"
)

// telling is a writer that tells how much is written to it, as it goes.
type telling struct {
	io.Writer
	told func(n int)
}

func (t *telling) Write(p []byte) (int, error) {
	n, err := t.Writer.Write(p)
	t.told(n)
	return n, err
}

func (t *telling) ReadFrom(r io.Reader) (int64, error) { return passOn(t.Writer, r, t.told) }

// How much the kernel copies before anybody hears of it: more as there is more,
// so that it costs little and what was told is never far behind.
const (
	firstPiece = 64 << 10
	mostPiece  = 1 << 20
)

// passOn is io.Copy that tells how much it has copied, as it goes.
func passOn(dst io.Writer, src io.Reader, told func(n int)) (n int64, err error) {
	whole, limited := src.(*io.LimitedReader)
	if !limited {
		whole = &io.LimitedReader{R: src, N: math.MaxInt64}
	}
	if !byKernel(dst, whole.R) {
		// Neither may have a way past what counts.
		return io.Copy(struct{ io.Writer }{&telling{dst, told}}, struct{ io.Reader }{src})
	}
	next := int64(firstPiece)
	if limited && whole.N <= mostPiece {
		next = whole.N
	}
	for whole.N > 0 {
		// The kernel knows its connection in a LimitedReader, but in no deeper one.
		piece := io.LimitedReader{R: whole.R, N: min(next, whole.N)}
		size := piece.N
		moved, err := io.Copy(dst, &piece)
		told(int(moved))
		n += moved
		whole.N -= moved
		if err != nil || moved < size {
			return n, err
		}
		next = min(max(firstPiece, n/8), mostPiece)
	}
	return n, nil
}

// byKernel reports whether the kernel may be able to copy.
func byKernel(dst io.Writer, src io.Reader) bool {
	_, from := src.(syscall.Conn)
	_, to := dst.(io.ReaderFrom)
	return from && to
}
