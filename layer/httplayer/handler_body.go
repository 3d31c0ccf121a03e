package httplayer

import (
	"errors"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// received is the body of an HTTP/1.1 request that a Handler serves. It knows
// whether it was read to its end.
type received struct {
	io.ReadCloser

	ended atomic.Bool
	mu    sync.Mutex
	read  int64
}

func (r *received) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, err := r.ReadCloser.Read(p)
	r.read += int64(n)
	switch {
	case err == io.EOF:
		r.ended.Store(true)
	case malformed(err):
		err = &malformedError{err}
	}
	return n, err
}

// malformed reports whether err says that a body is none, and not that it did
// not come.
func malformed(err error) bool {
	var network net.Error
	var large *http.MaxBytesError
	return err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, http.ErrBodyReadAfterClose) &&
		!errors.As(err, &network) && !errors.As(err, &large)
}

// malformedError is the client's fault.
type malformedError struct{ error }

func (e *malformedError) Unwrap() []error {
	return []error{&StatusError{Code: http.StatusBadRequest}, e.error}
}

// Close waits for a Read that is under way.
func (r *received) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ReadCloser.Close()
}

// rest reads what is left of a body of the given length, less than 0 if that is
// not known, and reports whether that was all. Close would not do: after a
// trailer that could not be read it says nothing.
func (r *received) rest(length int64) bool {
	r.mu.Lock()
	far := length-r.read > bodyRest
	r.mu.Unlock()
	if !far {
		_, _ = io.CopyN(io.Discard, r, bodyRest)
	}
	return r.ended.Load()
}

// bodyRest is how much of a body is read for the sake of its connection, as
// net/http does.
const bodyRest = 256 << 10

// bodyPatience is how long the rest of a request body may take to come, of
// which nobody wants to know any more.
const bodyPatience = time.Second

// finish sees to the end of a request body that was not read to it, because the
// endpoint answered before. The server reads some more of it, to use the
// connection again, or closes the connection after the response. It must not do
// that after the handler of a full-duplex response: at the end of the body it
// would begin to wait for the next request, and then it panics, for it does so
// twice. So it is done here.
//
// A client that waits for 100 Continue sends no body when it got something
// else; its connection is closed.
func (x *exchange) finish(r *http.Request) {
	if !x.duplex || x.received.ended.Load() {
		return
	}
	rc := http.NewResponseController(x.ResponseWriter)
	waits := r.Header.Get("Expect") != ""
	if !waits {
		_ = rc.Flush() // the client may wait for it
	}
	_ = rc.SetReadDeadline(time.Now().Add(bodyPatience))
	switch {
	case waits:
		hangUp(x.ResponseWriter)
	case !x.received.rest(r.ContentLength):
		// What is left would be taken for the next request.
		_ = x.received.Close()
		hangUp(x.ResponseWriter)
	default:
		_ = rc.SetReadDeadline(time.Time{})
	}
}

// abandon is for a response that is aborted: the server would first wait for
// the rest of the request body.
func (x *exchange) abandon() {
	x.settled()
	if x.received == nil || x.received.ended.Load() {
		return
	}
	_ = http.NewResponseController(x.ResponseWriter).SetReadDeadline(time.Now())
	_ = x.received.Close()
}

// hangUp has net/http end the response, and then close the connection, so that
// the client still gets all of it. That is what it does where a MaxBytesReader
// finds a body too large, the only way to tell it once the header has gone out.
// It tells no writer but net/http's own; of another one the response is aborted.
func hangUp(w http.ResponseWriter) {
	for {
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		w = outer.Unwrap()
	}
	if reflect.Indirect(reflect.ValueOf(w)).Type().PkgPath() != "net/http" {
		panic(http.ErrAbortHandler)
	}
	tooLarge := http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0)
	_, _ = tooLarge.Read(make([]byte, 1))
}

// buffers are what response bodies are copied with, of the size that
// ReverseProxy would allocate for each.
type buffers struct{ pool sync.Pool }

type buffer = [32 << 10]byte

func (b *buffers) Get() []byte {
	if buf, ok := b.pool.Get().(*buffer); ok {
		return buf[:]
	}
	return new(buffer)[:]
}

func (b *buffers) Put(buf []byte) {
	if len(buf) == len(buffer{}) {
		b.pool.Put((*buffer)(buf))
	}
}
