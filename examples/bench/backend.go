package main

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"strings"
)

// The paths of HTTP/1.1 requests. The response to a GET request has a body of responseSize
// bytes for smallPath, and of largeSize bytes for largePath. A POST request has a body of
// largeSize bytes.
const (
	smallPath     = "/bench"
	largePath     = "/large"
	contentLength = "\r\nContent-Length: "
)

// largeSize is the size of a large body in bytes. Tests set a smaller one.
var largeSize = 1 << 20 //nolint:gochecknoglobals // the tests change it once

// responseSize is the size of a small response body in bytes. responseHeaders and
// responseTrailers are the header blocks of a gRPC response, encoded by hand (RFC 7541, section
// 6.2.2). In them, a field is a 0, the length of the name, the name, the length of the value,
// and the value.
const (
	responseSize     = 1024
	responseHeaders  = "\x88\x00\x0ccontent-type\x10application/grpc" // :status 200
	responseTrailers = "\x00\x0bgrpc-status\x010"
)

// backend runs the HTTP and gRPC server to which all proxies forward requests. It is the
// main function of a child process, and serves until the process ends.
func backend(_ context.Context, _ []string, ready func(string, command)) error {
	small, large := http1Response(responseSize), http1Response(largeSize)
	call, largeCall := message(responseSize), message(largeSize)
	return serve(ready, func(conn net.Conn) {
		w := newWire(conn)
		for len(w.in) < len(preface) && bytes.HasPrefix([]byte(preface), w.in) {
			if w.read() != nil {
				return
			}
		}
		respond := w.http1Responder(small, large)
		if after, ok := bytes.CutPrefix(w.in, []byte(preface)); ok {
			w.in, w.out = after, append(w.out, settingsFrame...)
			respond = w.grpcResponder(call, largeCall)
		}
		for {
			respond()
			if w.flush() != nil || w.read() != nil {
				return
			}
		}
	})
}

func http1Response(size int) string {
	return "HTTP/1.1 200 OK\r\nContent-Type: text/plain" + contentLength + strconv.Itoa(size) + headEnd + strings.Repeat("x", size)
}

// http1Responder returns a function that serves the HTTP/1.1 connection w. The caller calls
// the function after each read. For each complete request, the function appends a response
// to w.out. The response is the argument large for a GET request with largePath, and small
// for all other requests.
func (w *wire) http1Responder(small, large string) func() {
	response := "" // to the last request
	return func() {
		for w.skipped() {
			w.out = append(w.out, response...)
			response = ""
			head, after, ok := bytes.Cut(w.in, []byte(headEnd))
			if !ok {
				return
			}
			w.in, response = after, small
			switch {
			case bytes.HasPrefix(head, []byte("POST ")):
				w.skip = largeSize
			case bytes.HasPrefix(head, []byte("GET "+largePath)):
				response = large
			}
		}
	}
}

// grpcResponder returns a function that serves the gRPC connection w. The caller calls the
// function after each read. The function responds to each complete call. The response is
// the argument large for a call with a request of downloadSize bytes, and small for all
// other calls.
func (w *wire) grpcResponder(small, large string) func() {
	received := make(map[uint32]int) // bytes of each open request
	return func() {
		for f, ok := w.next(); ok; f, ok = w.next() {
			if f.kind == frameData {
				received[f.stream] += len(f.payload)
			}
			if f.flags&flagEndStream == 0 || f.kind != frameHeaders && f.kind != frameData {
				continue
			}
			response := small
			if received[f.stream] == messagePrefix+downloadSize {
				response = large
			}
			delete(received, f.stream)
			w.frame(frameHeaders, flagEndHeaders, f.stream, responseHeaders)
			w.bodies = append(w.bodies, body{f.stream, w.start, response, responseTrailers})
		}
		w.pump()
	}
}
