package httplayer

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
)

// heads are the headers that exchanges lend to ReverseProxy.
type heads struct{ pool sync.Pool }

func (p *heads) get() http.Header {
	if h, ok := p.pool.Get().(http.Header); ok {
		return h
	}
	return make(http.Header)
}

func (p *heads) put(h http.Header) {
	clear(h)
	p.pool.Put(h)
}

// Header is one that is lent until the response begins. ReverseProxy writes 1xx
// there as well: on the goroutine of a transport, be it that of a try that was
// given up, while the server's own header may be written to here.
func (x *exchange) Header() http.Header {
	if x.begun {
		return x.ResponseWriter.Header()
	}
	if x.head == nil {
		x.head = x.handler.heads.get()
	}
	return x.head
}

func (x *exchange) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		x.inform(status)
		return
	}
	x.begin()
	x.ResponseWriter.WriteHeader(status)
}

// begin adds what was written to the server's own header, from now on the only
// one. ReverseProxy passes on no 1xx any more.
func (x *exchange) begin() {
	if x.begun {
		return
	}
	x.begun = true
	header := x.ResponseWriter.Header()
	for name, values := range x.head {
		if there := header[name]; len(there) > 0 {
			values = slices.Concat(there, values)
		}
		header[name] = values
	}
	if x.head != nil {
		x.handler.heads.put(x.head)
		x.head = nil
	}
}

// inform passes on a 1xx, unless there is a response, or the client does not
// know of such things. What was said of the response is kept for that.
func (x *exchange) inform(status int) {
	x.informing.Lock()
	defer x.informing.Unlock()
	if x.answered || x.ten {
		return
	}
	header := x.ResponseWriter.Header()
	kept := maps.Clone(header)
	clear(header)
	maps.Copy(header, x.head)
	x.ResponseWriter.WriteHeader(status)
	clear(header)
	maps.Copy(header, kept)
}

// settled ends the time of 1xx: the server's header and its writer are the
// handler's alone.
func (x *exchange) settled() {
	x.informing.Lock()
	x.answered = true
	x.informing.Unlock()
}

// failExchange answers by the server's own writer.
func (h *handler) failExchange(w http.ResponseWriter, r *http.Request, err error) {
	if x, ok := w.(*exchange); ok {
		w = x.ResponseWriter
	}
	h.fail(w, r, err)
}

// roundTrip has svc answer. What no server could send on is no answer.
func (h *handler) roundTrip(req *http.Request) (*http.Response, error) {
	rsp, err := roundTripper{h.svc}.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	switch code := rsp.StatusCode; {
	case code == http.StatusSwitchingProtocols:
		err = switchError(req, rsp)
	case code < http.StatusOK || code > 999:
		err = &peerError{fmt.Errorf("httplayer: %d is no status of a response", code)}
	}
	if err != nil {
		_ = rsp.Body.Close()
		return nil, err
	}
	return rsp, nil
}
