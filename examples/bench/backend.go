package main

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"strings"
)

// The backend returns the same response to each HTTP/1.1 request without a body, and to
// each gRPC call by HTTP/2. The response header block is encoded by hand (RFC 7541,
// section 6.2.2): for each field a 0, the length of the name, the name, the length of
// the value and the value.
const (
	responseSize     = 1024
	responseHeaders  = "\x88\x00\x0ccontent-type\x10application/grpc" // :status 200
	responseTrailers = "\x00\x0bgrpc-status\x010"
)

// backend is the role of the server behind all proxies.
func backend(_ context.Context, _ []string, ready func(string, command)) error {
	response := "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: " + strconv.Itoa(responseSize) +
		headEnd + strings.Repeat("x", responseSize)
	call := message(responseSize)
	return serve(ready, func(conn net.Conn) {
		w := newWire(conn)
		for len(w.in) < len(preface) && bytes.HasPrefix([]byte(preface), w.in) {
			if w.read() != nil {
				return
			}
		}
		respond := func() { w.respondHTTP1(response) }
		if after, ok := bytes.CutPrefix(w.in, []byte(preface)); ok {
			w.in, w.out = after, append(w.out, settingsFrame...)
			respond = w.grpcResponder(call)
		}
		for {
			respond()
			if w.flush() != nil || w.read() != nil {
				return
			}
		}
	})
}

func (w *wire) respondHTTP1(response string) {
	for {
		_, after, ok := bytes.Cut(w.in, []byte(headEnd))
		if !ok {
			return
		}
		w.in, w.out = after, append(w.out, response...)
	}
}

// grpcResponder returns the function that responds to the calls of a connection.
func (w *wire) grpcResponder(response string) func() {
	var waiting []uint32 // streams for whose responses the window was too small
	return func() {
		for f, ok := w.next(); ok; f, ok = w.next() {
			if f.flags&flagEndStream != 0 && (f.kind == frameHeaders || f.kind == frameData) {
				waiting = append(waiting, f.stream)
			}
		}
		for len(waiting) > 0 && w.window >= len(response) {
			w.frame(frameHeaders, flagEndHeaders, waiting[0], responseHeaders)
			w.frame(frameData, 0, waiting[0], response)
			w.frame(frameHeaders, flagEndHeaders|flagEndStream, waiting[0], responseTrailers)
			w.window -= len(response)
			waiting = waiting[1:]
		}
	}
}
