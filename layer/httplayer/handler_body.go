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

// received is the body of an HTTP/1.1 request. It records whether the body was
// read to its end.
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

// malformed reports whether err means that a body violates the protocol, as
// opposed to a lost connection.
func malformed(err error) bool {
	var network net.Error
	var large *http.MaxBytesError
	return err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, http.ErrBodyReadAfterClose) &&
		!errors.As(err, &network) && !errors.As(err, &large)
}

// malformedError is answered with 400.
type malformedError struct{ error }

func (e *malformedError) Unwrap() []error {
	return []error{&StatusError{Code: http.StatusBadRequest}, e.error}
}

// Close waits for a concurrent Read to return.
func (r *received) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ReadCloser.Close()
}

// rest reads up to bodyRest remaining bytes of a body and reports whether it
// reached the end. A negative length is unknown. Close is not sufficient,
// because it hides an error in the trailers.
func (r *received) rest(length int64) bool {
	r.mu.Lock()
	far := length-r.read > bodyRest
	r.mu.Unlock()
	if !far {
		_, _ = io.CopyN(io.Discard, r, bodyRest)
	}
	return r.ended.Load()
}

// bodyRest is the number of bytes read from an unread request body to keep its
// connection usable. net/http has the same limit.
const bodyRest = 256 << 10

// bodyPatience limits the time to read the rest of an unused request body.
const bodyPatience = time.Second

// finish handles a request body that the endpoint did not read to its end. It
// reads a limited rest, so that the connection can be reused, or else closes
// the connection after the response. net/http would do this itself, but panics
// if it does so after a full-duplex response.
//
// A client that waits for 100 Continue does not send its body, so its
// connection is closed.
func (x *exchange) finish(r *http.Request) {
	if !x.duplex || x.received.ended.Load() {
		return
	}
	rc := http.NewResponseController(x.ResponseWriter)
	waits := r.Header.Get("Expect") != ""
	if !waits {
		_ = rc.Flush() // the client may wait for the response before it sends more
	}
	_ = rc.SetReadDeadline(time.Now().Add(bodyPatience))
	switch {
	case waits:
		hangUp(x.ResponseWriter)
	case !x.received.rest(r.ContentLength):
		// The server would parse the rest as the next request.
		_ = x.received.Close()
		hangUp(x.ResponseWriter)
	default:
		_ = rc.SetReadDeadline(time.Time{})
	}
}

// abandon ends the request body of an aborted response, because the server
// would wait for the rest of it.
func (x *exchange) abandon() {
	x.settled()
	if x.received == nil || x.received.ended.Load() {
		return
	}
	_ = http.NewResponseController(x.ResponseWriter).SetReadDeadline(time.Now())
	_ = x.received.Close()
}

// hangUp makes net/http finish the response and then close the connection.
// Exceeding a MaxBytesReader is the only way to request that after the headers
// were sent. With a writer that is not of net/http the response is aborted.
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

// buffers is the pool of buffers for copying response bodies. Their size is
// that of ReverseProxy's own.
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
