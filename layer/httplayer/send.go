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

// ServeHTTP serves a request of a server that is not a [Server].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &informer{w: w}
	out := r.WithContext(reqctx.WithValue(r.Context(), message.InformerKey, x))
	out.Header = r.Header.Clone()
	message.RemoveHopByHop(out.Header)
	url := *r.URL
	out.URL = &url
	switch {
	case r.ContentLength == 0:
		out.Body = http.NoBody // the layers would take 0 with a body for an unknown length
	case r.ProtoMajor == 1:
		body := &receivedBody{Reader: r.Body, control: http.NewResponseController(w)}
		defer body.wait()
		out.Body = body
	}
	defer x.stop()
	rsp, _ := h.serve(out, false) // without resets, serve returns no error
	x.stop()
	send(w, out, rsp)
}

// receivedBody wraps an HTTP/1.1 request body of net/http. Close interrupts a Read in
// progress, and later Reads fail. It does not close the wrapped body, because that would
// wait for the rest of the body. The server closes the wrapped body after the handler has
// returned.
type receivedBody struct {
	io.Reader
	control *http.ResponseController
	reads   sync.Mutex
	closed  atomic.Bool
}

func (b *receivedBody) Read(p []byte) (int, error) {
	b.reads.Lock()
	defer b.reads.Unlock()
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.Reader.Read(p)
}

func (b *receivedBody) Close() error {
	b.closed.Store(true)
	if b.reads.TryLock() {
		b.reads.Unlock()
		return nil
	}
	return b.control.SetReadDeadline(time.Now())
}

// wait interrupts a Read in progress and waits until it returns. A later Close would set the
// deadline of another request. If the writer has no deadlines, wait does not wait.
func (b *receivedBody) wait() {
	if b.Close() == nil {
		b.reads.Lock()
		b.reads.Unlock() //nolint:staticcheck,gocritic // waits for a Read in progress
	}
}

// informer sends 1xx responses to the client. After a call of stop, Inform sends nothing,
// because the final response is being written.
type informer struct {
	mu sync.Mutex
	w  http.ResponseWriter // nil after stop
}

// Inform sends a 1xx response to the client. It is part of [message.Informer]. It ignores 100
// Continue, because the server sends this itself.
func (x *informer) Inform(status int, header http.Header) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.w == nil || status == http.StatusContinue {
		return nil
	}
	to := x.w.Header()
	final := maps.Clone(to)
	clear(to)
	maps.Copy(to, header)
	x.w.WriteHeader(status)
	clear(to)
	maps.Copy(to, final)
	return nil
}

func (x *informer) stop() {
	x.mu.Lock()
	x.w = nil
	x.mu.Unlock()
}

// send writes rsp to w and closes the body of rsp. If the body fails, send aborts the
// response by a panic with [http.ErrAbortHandler].
func send(w http.ResponseWriter, r *http.Request, rsp *http.Response) {
	defer rsp.Body.Close()
	if rsp.StatusCode == http.StatusSwitchingProtocols || r.Method == http.MethodConnect && rsp.StatusCode/100 == 2 {
		serveTunnel(w, r, rsp)
		return
	}
	header := w.Header()
	for name, values := range rsp.Header {
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
	announced := maps.Clone(rsp.Trailer)
	for name := range announced {
		header.Add("Trailer", name)
	}
	if ended(rsp) && (rsp.ContentLength < 0 || isGRPC(r)) {
		header["Content-Length"] = nil // keeps the server from adding one
	}
	w.WriteHeader(rsp.StatusCode)
	if ended(rsp) {
		return
	}
	control := http.NewResponseController(w)
	if _, err := message.Copy(w, rsp.Body, func() { _ = control.Flush() }); err != nil {
		panic(http.ErrAbortHandler)
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
}

// serveTunnel hijacks the connection of the client and sends the headers of rsp, except those
// about the length of a body. It then copies bytes between the client and the body of rsp,
// which is the connection to the endpoint.
func serveTunnel(w http.ResponseWriter, r *http.Request, rsp *http.Response) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer conn.Close()
	endpoint := rsp.Body.(io.ReadWriteCloser) //nolint:errcheck,forcetypeassert // see checkResponse
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
