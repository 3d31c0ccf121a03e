package httplayer

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// ServeHTTP serves a request in net/http's server, or in another one with the same interface. The
// handler is called concurrently.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x, reported := message.NewStream[stream](&h.cfg)
	x.w = w
	x.informing = true
	x.req = r.WithContext(reqctx.WithValue(r.Context(), message.InformerKey, x))
	x.req.Header = r.Header.Clone()
	message.RemoveHopByHop(x.req.Header)
	url := *r.URL
	x.req.URL = &url
	switch {
	case r.ContentLength == 0:
		x.req.Body = http.NoBody // the layers would take 0 with a body for an unknown length
	case r.ProtoMajor == 1:
		body := &receivedBody{Reader: r.Body, control: http.NewResponseController(w)}
		// The handler must not return while a layer still reads from the body.
		defer body.wait()
		x.req.Body = body
	}
	// Count the bytes for the Report.
	if h.cfg.Ended != nil && hasBody(x.req) {
		x.req.Body = newTeeBody(x.req.Body, func(_ int64, p []byte) { x.received.Add(int64(len(p))) })
	}
	defer x.stop()
	if message.Serve(&h.cfg, x, x.req, reported) != nil {
		panic(http.ErrAbortHandler)
	}
}

// stream is the [message.Stream] for a request in a server that is not a [Server].
type stream struct {
	w        http.ResponseWriter
	req      *http.Request
	received atomic.Int64

	mu        sync.Mutex
	informing bool // the final response has not begun
}

// Received returns how many bytes of the request body were read. It is part of [message.Stream].
func (x *stream) Received() int64 { return x.received.Load() }

// receivedBody wraps an HTTP/1.1 request body from net/http. Close interrupts a Read in progress,
// and later Reads fail. It does not close the wrapped body, because that would wait for the rest.
// The server closes the wrapped body after the handler has returned.
type receivedBody struct {
	io.Reader
	control *http.ResponseController
	reads   sync.Mutex  // held during a Read
	closed  atomic.Bool // Close was called, so that Read fails
}

// Read reads from the received body. After Close it fails.
func (b *receivedBody) Read(p []byte) (int, error) {
	b.reads.Lock()
	defer b.reads.Unlock()
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.Reader.Read(p)
}

// Close makes later Reads fail, and ends one in progress by a deadline.
func (b *receivedBody) Close() error {
	b.closed.Store(true)
	if b.reads.TryLock() {
		b.reads.Unlock()
		return nil
	}
	return b.control.SetReadDeadline(time.Now())
}

// wait interrupts a Read in progress and waits until it returns. The handler must not return earlier,
// because a later Close would set the read deadline for the connection's next request. If the writer
// does not support deadlines, wait does not wait.
func (b *receivedBody) wait() {
	if b.Close() == nil {
		b.reads.Lock()
		b.reads.Unlock() //nolint:staticcheck,gocritic // waits for a Read in progress
	}
}

// Inform sends a 1xx response to the client. It is part of [message.Informer]. It ignores 100
// Continue, because the server sends this itself.
func (x *stream) Inform(status int, header http.Header) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.informing || status == http.StatusContinue {
		return nil
	}
	// net/http sends the whole header map with a 1xx response, so the final headers are put aside
	// meanwhile.
	to := x.w.Header()
	final := maps.Clone(to)
	clear(to)
	maps.Copy(to, header)
	x.w.WriteHeader(status)
	clear(to)
	maps.Copy(to, final)
	return nil
}

// stop makes Inform send nothing, because the final response is being written.
func (x *stream) stop() {
	x.mu.Lock()
	x.informing = false
	x.mu.Unlock()
}

// Respond implements [message.Stream]. After an error, the caller must abort the response.
func (x *stream) Respond(rsp *http.Response) (sent int64, err error) {
	x.stop()
	w, r := x.w, x.req
	defer rsp.Body.Close()
	if rsp.StatusCode == http.StatusSwitchingProtocols || r.Method == http.MethodConnect && rsp.StatusCode/100 == 2 {
		serveTunnel(w, r, rsp)
		return -1, nil
	}
	header := w.Header()
	for name, values := range rsp.Header {
		// net/http writes the fields about the connection itself. It must only know that it has to close.
		if !message.IsHopByHop(name) || name == "Connection" && message.Listed(values, "close") {
			header[name] = append(header[name], values...)
		}
	}
	if _, ok := header["Content-Type"]; !ok {
		header["Content-Type"] = nil // prevents the server from guessing one
	}
	if rsp.ContentLength < 0 {
		delete(header, "Content-Length")
	}
	announced := maps.Clone(rsp.Trailer) // the map may get further trailers at the end of the body
	for name := range announced {
		header.Add("Trailer", name)
	}
	if ended(rsp) && (rsp.ContentLength < 0 || isGRPC(r)) {
		header["Content-Length"] = nil // keeps the server from adding one
	}
	w.WriteHeader(rsp.StatusCode)
	if ended(rsp) {
		return 0, nil
	}
	control := http.NewResponseController(w)
	if sent, err = message.Copy(w, rsp.Body, func() { _ = control.Flush() }); err != nil {
		return sent, err
	}
	if len(rsp.Trailer) > len(announced) {
		_ = control.Flush() // else net/http would send a Content-Length and no trailers
	}
	for name, values := range rsp.Trailer {
		if _, ok := announced[name]; !ok {
			name = http.TrailerPrefix + name
		}
		header[name] = values
	}
	return sent, nil
}

// serveTunnel hijacks the client's connection and sends rsp's headers, except those about a body
// length. It then copies bytes between the client and rsp's body, which is the connection to the
// endpoint.
func serveTunnel(w http.ResponseWriter, r *http.Request, rsp *http.Response) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer conn.Close()
	endpoint := rsp.Body.(io.ReadWriteCloser) //nolint:errcheck,forcetypeassert // see checkResponse
	// The endpoint's Connection field was that of another connection.
	if upgrade := rsp.Header["Upgrade"]; len(upgrade) > 0 {
		rsp.Header["Connection"] = []string{"Upgrade"}
	}
	_, _ = fmt.Fprintf(buffered, "HTTP/1.1 %s\r\n", message.StatusLines[rsp.StatusCode])
	_ = rsp.Header.WriteSubset(buffered, map[string]bool{"Content-Length": true, "Transfer-Encoding": true})
	_, _ = buffered.WriteString("\r\n")
	if buffered.Flush() == nil { // returns an earlier write error, too
		first, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
		_ = message.Tunnel(r.Context(), &message.AheadConn{Conn: conn, Ahead: first}, endpoint)
	}
}
