package layer

import (
	"errors"
	"io"
	"slices"
	"sync"
)

// TeeBody returns body with an ear to what is read of it: for the Fork of an
// [Editor]. It keeps up to limit bytes, and calls whole once, on the goroutine of
// whoever reads or closes: with all of the body when it was read to its end, and
// false when it is larger than limit, broke off, or was closed before its end.
// The bytes belong to whole. Nothing is read or waited for on its behalf.
//
// size is how long the body says that it is; less than 0 if it does not say. A
// body that is longer or shorter has not come whole. One that was read as far
// as that, and closed, has.
//
// Read and Close may be called side by side. A body that is neither read to its
// end nor closed calls nothing.
func TeeBody(body io.ReadCloser, size, limit int64, whole func(kept []byte, ok bool)) io.ReadCloser {
	return &forkedBody{source: body, size: size, limit: max(limit, 0), whole: whole}
}

type forkedBody struct {
	source      io.ReadCloser
	size, limit int64

	mu    sync.Mutex
	kept  []byte
	whole func(kept []byte, ok bool) // nil once it was called
}

func (f *forkedBody) Read(p []byte) (int, error) {
	n, err := f.source.Read(p)
	if n >= 0 && n <= len(p) { // else it is for the reader to be surprised
		f.take(p[:n], err)
	}
	return n, err
}

func (f *forkedBody) take(p []byte, err error) {
	f.mu.Lock()
	if f.whole == nil {
		f.mu.Unlock()
		return
	}
	fits := int64(len(p)) <= f.limit-int64(len(f.kept))
	if fits {
		f.kept = append(f.kept, p...)
		if err == nil {
			f.mu.Unlock()
			return
		}
	}
	f.end(fits && errors.Is(err, io.EOF) && (f.size < 0 || f.complete()))
}

func (f *forkedBody) Close() error {
	f.mu.Lock()
	if f.whole == nil {
		f.mu.Unlock()
	} else {
		f.end(f.complete())
	}
	return f.source.Close()
}

// complete reports whether as much is there as the body said. It is called with
// mu held.
func (f *forkedBody) complete() bool { return int64(len(f.kept)) == f.size }

// end is called with mu held, and gives it back.
func (f *forkedBody) end(ok bool) {
	kept, whole := f.kept, f.whole
	f.kept, f.whole = nil, nil
	f.mu.Unlock()
	if !ok {
		kept = nil
	}
	whole(slices.Clip(kept), ok)
}
