package httplayer

import (
	"io"
	"net/http"
)

// TeeRequestBody returns a shallow copy of r with a body that tells read what is
// read of it, and at how many bytes into the body that begins. Read is called
// on the goroutine of whoever reads, before it gets the bytes, and keeps none
// of them. A body that GetBody makes tells, too, from 0 on. A request without a
// body is returned as it is.
//
// One thing is not as it was: of a body that it does not know to be in memory,
// net/http sends the header ahead.
func (Accessor) TeeRequestBody(r *http.Request, read func(at int64, p []byte)) *http.Request {
	if r.Body == nil || r.Body == http.NoBody {
		return r
	}
	out := *r
	out.Body = along(r.Body, read)
	if again := r.GetBody; again != nil {
		out.GetBody = func() (io.ReadCloser, error) {
			body, err := again()
			if err != nil || body == nil || body == http.NoBody {
				return body, err
			}
			return along(body, read), nil
		}
	}
	return &out
}

// TeeResponseBody does for the body of r, in place, what TeeRequestBody does for
// that of a request. The body of an upgraded connection (101) stays an
// [io.ReadWriteCloser], with its CloseWrite if it has one; what is written to
// it is not told.
func (Accessor) TeeResponseBody(r *http.Response, read func(at int64, p []byte)) *http.Response {
	if r == nil || ended(r) {
		return r
	}
	r.Body = along(r.Body, read)
	return r
}

// along returns a body of the same kind: one that can be written to, and closed
// by halves, still can.
func along(body io.ReadCloser, read func(at int64, p []byte)) io.ReadCloser {
	told := &toldBody{ReadCloser: body, read: read}
	w, writes := body.(io.Writer)
	half, halves := body.(halfCloser)
	switch {
	case writes && halves:
		return tunnel{toldStream{told, w}, half}
	case writes:
		return toldStream{told, w}
	}
	return told
}

// tunnel is the body of an upgraded connection: embedding alone would hide
// that it can be closed by halves.
type tunnel struct {
	io.ReadWriteCloser
	halfCloser
}

// toldBody is read by one goroutine at a time, as bodies are.
type toldBody struct {
	io.ReadCloser
	read func(at int64, p []byte)
	at   int64
}

func (b *toldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.read(b.at, p[:n])
		b.at += int64(n)
	}
	return n, err
}

type toldStream struct {
	*toldBody
	io.Writer
}
