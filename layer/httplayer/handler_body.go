package httplayer

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// received is the body of an HTTP/1.1 request that a Handler serves. It knows
// whether it was read to its end.
type received struct {
	io.ReadCloser

	ended atomic.Bool
}

func (r *received) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err == io.EOF {
		r.ended.Store(true)
	}
	return n, err
}

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
// else; its connection is closed anyway.
func (x *exchange) finish(r *http.Request) {
	if !x.duplex || x.received.ended.Load() || r.Header.Get("Expect") != "" {
		return
	}
	rc := http.NewResponseController(x.ResponseWriter)
	_ = rc.Flush() // the client may wait for it
	_ = rc.SetReadDeadline(time.Now().Add(bodyPatience))
	if x.received.Close() != nil {
		// What is left would be taken for the next request.
		panic(http.ErrAbortHandler) //nolint:forbidigo // how net/http is told to close a connection
	}
	_ = rc.SetReadDeadline(time.Time{})
}
