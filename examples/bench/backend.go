package main

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"strings"
)

// Paths for HTTP/1.1 requests. A GET returns responseSize bytes from smallPath and largeSize bytes
// from largePath. A POST has a body of largeSize bytes.
const (
	smallPath     = "/bench"
	largePath     = "/large"
	contentLength = "\r\nContent-Length: "
)

// largeSize is the size of a large body in bytes. Tests reduce it.
var largeSize = 1 << 20 //nolint:gochecknoglobals // the tests change it once

// responseSize is the size of a small response body in bytes. responseHeaders and responseTrailers
// are a gRPC response's header blocks, encoded by hand: a field is a 0, followed by the name and
// the value, each after its length (RFC 7541, section 6.2.2).
const (
	responseSize     = 1024
	responseHeaders  = "\x88\x00\x0ccontent-type\x10application/grpc" // :status 200
	responseTrailers = "\x00\x0bgrpc-status\x010"
)

// backend is the [role] of the HTTP and gRPC server to which all proxies forward requests.
func backend(_ context.Context, _ []string, ready func(string, command)) error {
	// The responses are made once, so that the backend takes little CPU time.
	small := http1Response(responseSize)
	large := http1Response(largeSize)
	call := message(responseSize)
	largeCall := message(largeSize)
	return serve(ready, func(conn net.Conn) {
		w := newWire(conn)
		// The first bytes tell HTTP/2 from HTTP/1.1. If they may still become HTTP/2's preface, more are read.
		for len(w.in) < len(preface) && bytes.HasPrefix([]byte(preface), w.in) {
			if w.read() != nil {
				return
			}
		}
		// respond is called after each read.
		respond := w.http1Responder(small, large)
		if rest, ok := bytes.CutPrefix(w.in, []byte(preface)); ok {
			w.in = rest
			// The server's SETTINGS must be its first frame.
			w.out = append(w.out, settingsFrame...)
			respond = w.grpcResponder(call, largeCall)
		}
		for {
			// The preface may have come with a request, so respond comes before the next read.
			respond()
			if w.flush() != nil || w.read() != nil {
				return
			}
		}
	})
}

// http1Response returns a complete response with a body of this size.
func http1Response(size int) string {
	return "HTTP/1.1 200 OK\r\nContent-Type: text/plain" + contentLength + strconv.Itoa(size) + headEnd + strings.Repeat("x", size)
}

// http1Responder returns a function that serves the HTTP/1.1 connection w, and has to be called
// after each read. For each complete request, it appends a response to w.out: large for a GET of
// largePath, and otherwise small.
func (w *wire) http1Responder(small, large string) func() {
	response := "" // to a request whose body is still being read
	return func() {
		// skipped is false while a request's body is incomplete.
		for w.skipped() {
			// The previous request's body is complete now, so its response follows.
			w.out = append(w.out, response...)
			response = ""
			head, rest, ok := bytes.Cut(w.in, []byte(headEnd))
			if !ok {
				return
			}
			w.in = rest
			// The response is sent in the next turn, after the body, if there is one.
			response = small
			switch {
			case bytes.HasPrefix(head, []byte("POST ")):
				w.skip = largeSize
			case bytes.HasPrefix(head, []byte("GET "+largePath)):
				response = large
			}
		}
	}
}

// grpcResponder returns a function that serves the gRPC connection w, and has to be called after
// each read. It responds to each complete call: with large to a request of downloadSize bytes, and
// otherwise with small.
func (w *wire) grpcResponder(small, large string) func() {
	received := make(map[uint32]int) // bytes of each open request
	return func() {
		for f, ok := w.next(); ok; f, ok = w.next() {
			if f.kind == frameData {
				received[f.stream] += len(f.payload)
			}
			// Only the last frame of a request triggers the response.
			if f.flags&flagEndStream == 0 || f.kind != frameHeaders && f.kind != frameData {
				continue
			}
			response := small
			// The size of the request tells which response is wanted.
			if received[f.stream] == messagePrefix+downloadSize {
				response = large
			}
			delete(received, f.stream)
			// The message and the trailers follow as far as flow control permits.
			w.frame(frameHeaders, flagEndHeaders, f.stream, responseHeaders)
			// A new body may use the initial window of its stream.
			w.bodies = append(w.bodies, body{f.stream, w.start, response, responseTrailers})
		}
		w.pump()
	}
}
