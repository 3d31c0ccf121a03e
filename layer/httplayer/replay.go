package httplayer

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Idempotent reports whether req's method is idempotent (RFC 9110, section 9.2.2). It also
// returns true if req carries an Idempotency-Key or X-Idempotency-Key header, as in
// [http.Transport]. An empty method is GET. A gRPC call is a POST, so the retry layer's policy
// must specify whether it is idempotent.
func (HTTP) Idempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	_, key := req.Header["Idempotency-Key"]
	_, private := req.Header["X-Idempotency-Key"]
	return key || private
}

// Replay returns a [layer.Replay], which makes a request for each attempt to send req. It returns
// nil if req carries no body, because every attempt can then send req itself. Otherwise the
// attempts read their body from GetBody, or from a buffer of up to limit bytes if GetBody is nil.
// Replay implements [layer.Protocol].
//
// Some requests are sent only once: CONNECT, an upgrade, and a request with a body and an Expect
// header. A request without GetBody is also sent only once if its Content-Length is above limit.
// Each attempt gets a shallow copy without GetBody, so that an [http.Transport] below does not
// repeat it.
func (HTTP) Replay(req *http.Request, limit int64) layer.Replay[*http.Request] {
	switch {
	case isTunnel(req):
		return sentOnce{}
	case !hasBody(req):
		return nil
	case len(req.Header["Expect"]) > 0, req.GetBody == nil && req.ContentLength > max(limit, 0):
		return sentOnce{}
	}
	return keptBody{layer.ReplayBody(req.Body, req.GetBody, limit), req, slices.Collect(maps.Keys(req.Trailer))}
}

// isTunnel reports whether req is CONNECT or requests an upgrade.
func isTunnel(req *http.Request) bool {
	return req.Method == http.MethodConnect || len(req.Header["Upgrade"]) > 0
}

// RetryAfter returns the time after which a request may be retried, or false if the response does
// not tell. For an error it returns [layer.RetryAfter]'s result. It implements [layer.Protocol].
//
// A 429 or 503 response tells the time in Retry-After, as a number of seconds or a date. A date in
// the past means 0. A gRPC response tells it in grpc-retry-pushback-ms, in the headers or the
// received trailers. If that value is negative, malformed or repeated, the result is negative,
// which forbids a retry (gRFC A6). Otherwise, if both fields are present, the longer time applies.
func (HTTP) RetryAfter(rsp *http.Response, err error) (time.Duration, bool) {
	if err != nil || rsp == nil {
		return layer.RetryAfter(err)
	}
	values := rsp.Header["Grpc-Retry-Pushback-Ms"]
	if len(values) == 0 {
		values = rsp.Trailer["Grpc-Retry-Pushback-Ms"]
	}
	pushed, push := pushback(values)
	if rsp.StatusCode != http.StatusTooManyRequests && rsp.StatusCode != http.StatusServiceUnavailable {
		return pushed, push
	}
	after, ok := retryAfter(rsp.Header.Get("Retry-After"), time.Now())
	// A pushback that forbids the retry counts more than Retry-After.
	if !ok || push && pushed < 0 {
		return pushed, push
	}
	return max(after, pushed), true
}

// Drain closes the body of rsp. Unless the Content-Length is above 8 KiB, it first reads
// the rest by [layer.DrainBody]. An HTTP/1.1 connection can then be reused, and an HTTP/2
// stream is not reset.
func (HTTP) Drain(rsp *http.Response) {
	switch {
	case rsp == nil || rsp.Body == nil:
	case ended(rsp), rsp.StatusCode == http.StatusSwitchingProtocols, rsp.ContentLength > maxDrainLength:
		_ = rsp.Body.Close()
	default:
		layer.DrainBody(rsp.Body)
	}
}

// maxDrainLength is the maximum Content-Length of a body that Drain reads, in bytes.
const maxDrainLength = 8 << 10

// sentOnce is the [layer.Replay] of a request that must not be sent again: it offers no further
// attempt.
type sentOnce struct{}

func (sentOnce) Next() (*http.Request, bool) { return nil, false }
func (sentOnce) Whole() bool                 { return false }
func (sentOnce) End()                        {}

// keptBody is the [layer.Replay] for a request whose body can be sent again. Each attempt gets
// its own trailers, because req's trailers may arrive while another attempt is reading the body.
type keptBody struct {
	*layer.BodyReplay
	req       *http.Request
	announced []string // names of the announced trailers
}

// Next returns a copy of the request for another attempt, with the body from its beginning. It returns
// false if the body cannot be sent again.
func (k keptBody) Next() (*http.Request, bool) {
	body, ok := k.BodyReplay.Next()
	if !ok {
		return nil, false
	}
	out := k.req.WithContext(k.req.Context())
	body = awaiting(body, k.req) // forwards the 100 Continue for which the client may wait
	out.Body, out.GetBody = body, nil
	if k.req.Trailer != nil {
		out.Trailer = make(http.Header, len(k.announced))
		// An attempt announces the same trailers. The values arrive at the end of the body.
		for _, name := range k.announced {
			out.Trailer[name] = nil
		}
		out.Body = &trailerFilter{wrappedBody: wrappedBody{body}, received: &k.req.Trailer, forwarded: &out.Trailer}
	}
	// Several endpoints may try this attempt, one after the other. A body with GetBody is in memory, and keeps its
	// type, by which an http.Transport recognizes that.
	if k.req.GetBody == nil {
		lendBody(out)
	}
	return out, true
}

// retryAfter parses a value of Retry-After (RFC 9110, section 10.2.3). A value that is too
// large for a Duration becomes the largest Duration. It returns false if the value is
// malformed.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	seconds, err := strconv.ParseUint(value, 10, 63)
	switch {
	case errors.Is(err, strconv.ErrRange), seconds > uint64(math.MaxInt64/time.Second):
		return math.MaxInt64, true
	case err == nil:
		return time.Duration(seconds) * time.Second, true
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return max(date.Sub(now), 0), true
}

// pushback parses the values of grpc-retry-pushback-ms (gRFC A6). It returns false without
// a value. It returns a negative duration, which forbids a retry, if there are several
// values or the value is negative or malformed.
func pushback(values []string) (time.Duration, bool) {
	switch len(values) {
	case 0:
		return 0, false
	case 1:
		if ms, err := strconv.ParseInt(values[0], 10, 32); err == nil && ms >= 0 {
			return time.Duration(ms) * time.Millisecond, true
		}
	}
	return -1, true
}

// setRetryAfter sets the header Retry-After in seconds. If grpc is true, it sets
// grpc-retry-pushback-ms in milliseconds instead. Both are rounded up.
func setRetryAfter(h http.Header, after time.Duration, grpc bool) {
	if grpc {
		ms := math.Ceil(float64(after) / float64(time.Millisecond))
		// gRPC clients read the pushback as a 32-bit integer.
		h.Set("Grpc-Retry-Pushback-Ms", strconv.FormatInt(int64(min(ms, math.MaxInt32)), 10))
	} else {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(after.Seconds())), 10))
	}
}

const (
	peekSize   = 2 << 10               // largest size of a piece in bytes
	peekMost   = 16 << 10              // longest body that Peek reads to its end, in bytes
	peekPieces = peekMost/peekSize + 1 // the last piece shows whether the body continues
	peekWait   = time.Millisecond      // longest wait after the first bytes
)

// Peek reads ahead in a gRPC response body, because only the trailers after it may report a failure,
// which a retry layer must know before it passes the response on. It waits for the first bytes, and
// then at most a millisecond for the body to end. ahead is a response from which all body bytes can
// still be read. whole is true if the body has ended without an error. Peek returns other responses
// unchanged, because they report failures in the status. It implements [layer.Protocol].
//
// Peek costs a goroutine, and some KiB of memory until the first bytes were read. The goroutine may
// wait for the next bytes after Peek has returned.
func (HTTP) Peek(ctx context.Context, rsp *http.Response) (ahead *http.Response, whole bool) {
	switch {
	case rsp == nil || ended(rsp):
		return rsp, true
	case rsp.ProtoMajor < 2 || rsp.ContentLength > peekMost || !strings.HasPrefix(rsp.Header.Get("Content-Type"), grpcType):
		return rsp, false
	}
	out := *rsp
	// out gets its own maps, because the caller may change them while observers read rsp and the
	// trailers arrive.
	out.Header, out.Trailer = rsp.Header.Clone(), rsp.Trailer.Clone()
	body := &peekedBody{ReadCloser: rsp.Body, pieces: make(chan piece, peekPieces)}
	out.Body = &trailerFilter{wrappedBody: wrappedBody{body}, received: &rsp.Trailer, forwarded: &out.Trailer}
	go body.fetch()
	// late is nil, and so never ready, until the first bytes have arrived.
	var late <-chan time.Time
	for body.held.err == nil {
		select {
		case p, ok := <-body.pieces:
			// fetch has read as much as it may, and the body has not ended.
			if !ok {
				return &out, false
			}
			body.held = piece{append(body.held.data, p.data...), p.err}
			if late == nil {
				late = time.After(peekWait)
			}
		case <-late:
			return &out, false
		case <-ctx.Done():
			return &out, false
		}
	}
	return &out, body.held.err == io.EOF //nolint:errorlint // a Reader returns exactly this value
}

// peekedBody is a body that first returns the bytes that Peek has read, and then the rest.
type peekedBody struct {
	io.ReadCloser            // the original body
	pieces        chan piece // pieces from fetch, which closes the channel after the last one
	held          piece      // bytes and error that Read returns next; used by the reader only
}

// piece is what one Read of the body returned, on its way from the reading goroutine to the caller.
type piece struct {
	data []byte
	err  error
}

// fetch reads the first pieces of the body, at most peekPieces, and sends them to b.pieces, whose
// capacity is sufficient for all of them. It is the function of a goroutine that Peek starts, because a
// Read may block.
func (b *peekedBody) fetch() {
	defer close(b.pieces)
	for range peekPieces {
		p := readPiece(b.ReadCloser)
		b.pieces <- p
		if p.err != nil {
			return
		}
	}
}

// readPiece returns one Read's result. It returns a panic as an error.
func readPiece(body io.Reader) (p piece) {
	defer panics.Recover(&p.err)
	buf := make([]byte, peekSize)
	n, err := body.Read(buf)
	return piece{buf[:n], err}
}

// Read returns the pieces that were read ahead, and then reads from the body itself.
func (b *peekedBody) Read(p []byte) (int, error) {
	if len(b.held.data) == 0 && b.held.err == nil {
		next, ok := <-b.pieces
		if !ok {
			return b.ReadCloser.Read(p) // fetch has ended, so nothing else reads the body
		}
		b.held = next
	}
	// The error of a piece belongs after its last byte.
	n := copy(p, b.held.data)
	if b.held.data = b.held.data[n:]; len(b.held.data) > 0 {
		return n, nil
	}
	return n, b.held.err
}
