package httplayer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/around"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// CompressPolicy specifies which responses [Compress] compresses. Zero fields use their defaults.
type CompressPolicy struct { //nolint:recvcheck // compress uses the copy of Compress without copying it again
	MinBytes int // smallest Content-Length that is compressed; the default is 1024

	// ContentTypes are the media types that are compressed, in lower case and without parameters. The
	// default is text, JSON, JavaScript, XML and SVG, without text/event-stream.
	ContentTypes []string
}

// compressible lists the content types that are compressed by default.
var compressible = [...]string{ //nolint:gochecknoglobals // constant
	"text/css", "text/csv", "text/html", "text/javascript", "text/markdown", "text/plain", "text/xml",
	"application/javascript", "application/json", "application/problem+json", "application/xml", "image/svg+xml",
}

// Validate returns an error for a negative MinBytes and for an invalid content type.
func (p CompressPolicy) Validate() error {
	if p.MinBytes < 0 {
		return fmt.Errorf("CompressPolicy.MinBytes is %d, must be at least 0", p.MinBytes)
	}
	for _, t := range p.ContentTypes {
		if kind, _, _ := mime.ParseMediaType(t); kind != t || !strings.Contains(t, "/") || strings.Contains(t, "*") {
			return fmt.Errorf("CompressPolicy.ContentTypes has %q, must be a content type in lower case, such as text/html", t)
		}
	}
	return nil
}

// Compress returns a layer that compresses responses with zstd or gzip, as the client accepts. It follows
// RFC 9110: a strong ETag becomes weak, Content-Length and Accept-Ranges are removed, Vary lists
// Accept-Encoding if the response depends on it, and HEAD gets the same headers as GET. It leaves a
// response unchanged if it is partial, already encoded, gRPC, or carries no-transform or a digest of its
// content. Without a Content-Length, a body of any size is compressed.
//
// Admission: every request is admitted. Ready is forwarded.
//
// Cancellation: not changed.
//
// Body: compressed as it is read. What has arrived is sent before the body waits for more.
//
// Errors: passed unchanged.
//
// Cost: for a compressed response, an encoder from a pool and a buffer of 32 KiB. An invalid policy panics.
func Compress(p CompressPolicy) Layer {
	if err := p.Validate(); err != nil {
		panic("httplayer: " + err.Error())
	}
	if p.MinBytes == 0 {
		p.MinBytes = 1024
	}
	// A copy, because the caller may change its slice later.
	if p.ContentTypes = slices.Clone(p.ContentTypes); len(p.ContentTypes) == 0 {
		p.ContentTypes = compressible[:]
	}
	state := layer.State{{Key: "min_bytes", Value: p.MinBytes}}
	return around.Layer("compress", state, func(ctx context.Context, req *http.Request, next Service) (*http.Response, error) {
		rsp, err := next.Call(ctx, req)
		if err == nil && rsp != nil {
			p.compress(req, rsp)
		}
		return rsp, err
	})
}

// compress makes rsp, the response to req, a compressed one, if the client accepts that and the policy
// selects it. It adds Vary: Accept-Encoding if another client could get the response in another form.
func (p *CompressPolicy) compress(req *http.Request, rsp *http.Response) {
	h := headerOf(rsp)
	kind, _, _ := mime.ParseMediaType(first(h, "Content-Type"))
	matches := slices.Contains(p.ContentTypes, kind)
	switch {
	case rsp.StatusCode == http.StatusNotModified:
		// The client's copy is still valid. Its headers must match those of the full response.
		if matches || kind == "" {
			addVary(h)
			weakenAsSent(req, h)
		}
		return
	case !transformable(req, rsp):
		return
	// The range counts bytes of the plain content. Only the full response would be compressed.
	case rsp.StatusCode == http.StatusPartialContent:
		if matches {
			addVary(h)
		}
		return
	}
	// If identity is false, the client refuses plain content, so it is compressed whatever the policy selects.
	coding, identity := acceptedCoding(req.Header["Accept-Encoding"])
	if matches || !identity {
		addVary(h)
	}
	length := rsp.ContentLength
	if n, err := strconv.ParseInt(first(h, "Content-Length"), 10, 64); err == nil { // HEAD has no other length
		length = n
	}
	if coding == "" || length == 0 || identity && (!matches || length >= 0 && length < int64(p.MinBytes)) {
		return
	}
	// From here on the response is compressed, so the headers that describe the plain bytes change.
	h["Content-Encoding"] = []string{coding}
	delete(h, "Content-Length")
	delete(h, "Accept-Ranges")
	// A strong ETag stands for the same bytes, and compressing changes them.
	if tag := first(h, "Etag"); strings.HasPrefix(tag, `"`) {
		h["Etag"] = []string{"W/" + tag}
	}
	rsp.ContentLength = -1
	if req.Method != http.MethodHead && rsp.Body != nil && rsp.Body != http.NoBody {
		rsp.Body = &compressedBody{ReadCloser: rsp.Body, coding: coding}
	}
}

// transformable reports whether a proxy may change the content of rsp. It may not if that is a tunnel
// or gRPC, is encoded already, has a digest, or if either side says no-transform.
func transformable(req *http.Request, rsp *http.Response) bool {
	h := rsp.Header
	_, tunnel := rsp.Body.(io.Writer)
	switch code := rsp.StatusCode; {
	// There is no content (1xx, 204, 205), or it must arrive as it is: tunnels, ranges and RPC messages.
	case code < http.StatusOK, code == http.StatusNoContent, code == http.StatusResetContent, tunnel, req.Method == http.MethodConnect,
		code != http.StatusPartialContent && len(h["Content-Range"]) > 0, message.IsRPC(h):
		return false
	}
	for _, coding := range h["Content-Encoding"] {
		if coding != "" && !strings.EqualFold(coding, "identity") {
			return false
		}
	}
	// A digest, which may also be announced as a trailer, is that of the plain content.
	for _, name := range [...]string{"Content-Digest", "Repr-Digest", "Digest", "Content-Md5"} {
		_, announced := rsp.Trailer[name]
		if len(h[name]) > 0 || announced {
			return false
		}
	}
	return !hasDirective(h["Cache-Control"], "no-transform") && !hasDirective(req.Header["Cache-Control"], "no-transform")
}

// hasDirective reports whether the comma-separated lists in values contain the given element. It
// ignores case.
func hasDirective(values []string, element string) bool {
	for _, value := range values {
		for item := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(item), element) {
				return true
			}
		}
	}
	return false
}

// addVary adds Accept-Encoding to Vary, unless Vary already lists it or "*".
func addVary(h http.Header) {
	if !hasDirective(h["Vary"], "Accept-Encoding") && !hasDirective(h["Vary"], "*") {
		h["Vary"] = append(slices.Clip(h["Vary"]), "Accept-Encoding")
	}
}

// weakenAsSent makes a 304 response's ETag weak if the client asked with the weak form, which it got
// with a compressed response. Otherwise the client would not recognize its stored response.
func weakenAsSent(req *http.Request, h http.Header) {
	tag := first(h, "Etag")
	if strings.HasPrefix(tag, `"`) && hasDirective(req.Header["If-None-Match"], "W/"+tag) {
		h["Etag"] = []string{"W/" + tag}
	}
}

// acceptedCoding returns the best coding for a client that sent values in Accept-Encoding: "zstd",
// "gzip", or "" for none. identity is false if the client refuses a response without coding.
func acceptedCoding(values []string) (coding string, identity bool) {
	weights := map[string]float64{}
	for _, value := range values {
		for item := range strings.SplitSeq(value, ",") {
			name, params, _ := strings.Cut(item, ";")
			q := 1.0
			if key, text, ok := strings.Cut(strings.ReplaceAll(params, " ", ""), "="); ok && strings.EqualFold(key, "q") {
				q, _ = strconv.ParseFloat(text, 64) // 0 if malformed: the safe choice is no coding
			}
			name = strings.ToLower(strings.TrimSpace(name))
			if name == "x-gzip" { // RFC 9110, section 8.4.1.3
				name = "gzip"
			}
			weights[name] = q
		}
	}
	// "*" stands for each coding that is not listed.
	weight := func(name string) float64 {
		if q, ok := weights[name]; ok {
			return q
		}
		return weights["*"]
	}
	// zstd comes first, so that it wins if the client accepts both equally.
	best := 0.0
	for _, name := range [...]string{"zstd", "gzip"} {
		if q := weight(name); q > best {
			coding, best = name, q
		}
	}
	// "*;q=0" refuses all codings that are not listed, even "identity".
	q, listed := weights["identity"]
	if other, ok := weights["*"]; !listed && ok && other == 0 {
		listed = true
	}
	// The client prefers plain content.
	if listed && q > best {
		coding = ""
	}
	return coding, !listed || q > 0
}

// encoder is implemented by the encoders of gzip and zstd.
type encoder interface {
	io.WriteCloser
	Flush() error
	Reset(w io.Writer)
}

// encoders holds a pool of idle encoders for each content coding, such as gzip. An encoder needs
// much memory, so it is used again.
var encoders = map[string]*sync.Pool{ //nolint:gochecknoglobals // pools are shared by all layers
	"gzip": {New: func() any { return gzip.NewWriter(nil) }},
	"zstd": {New: func() any {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(128<<10))
		if err != nil {
			panic("httplayer: " + err.Error()) // the options are constant
		}
		return e
	}},
}

// compressedBody compresses a body as it is read.
type compressedBody struct {
	io.ReadCloser // the body to compress
	coding        string

	mu      sync.Mutex // Close may be called during a Read
	encoder encoder    // nil before the first Read and after the end
	output  bytes.Buffer
	input   []byte
	err     error // the end of output
}

// Read reads compressed bytes. It feeds the encoder with pieces of the inner body until there is
// output.
func (b *compressedBody) Read(p []byte) (n int, err error) {
	defer panics.Recover(&err)
	for {
		b.mu.Lock()
		if b.output.Len() > 0 || b.err != nil {
			defer b.mu.Unlock() //nolint:gocritic // this iteration is the last
			if b.output.Len() == 0 {
				return 0, b.err
			}
			n, _ = b.output.Read(p)
			return n, nil
		}
		// The encoder is taken from the pool at the first Read, and given back by end.
		if b.encoder == nil {
			b.input = make([]byte, 32<<10)
			b.encoder, _ = encoders[b.coding].Get().(encoder)
			b.encoder.Reset(&b.output)
		}
		input := b.input
		b.mu.Unlock() // a Read may wait for the server, and Close must not wait for it
		n, err := b.ReadCloser.Read(input)
		b.encode(input[:n], err)
	}
}

// encode compresses p, the bytes that the inner body's Read returned with err. If the next Read would
// wait for the server, it flushes the encoder, so that the client gets what has arrived.
func (b *compressedBody) encode(p []byte, err error) {
	// waits: the next Read of the inner body would wait for the server.
	waits := false
	if err == nil {
		n, eof := message.Pending(b.ReadCloser)
		waits = n == 0 && !eof
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.encoder == nil { // Close was called
		return
	}
	_, _ = b.encoder.Write(p) // a write to a buffer does not fail
	switch {
	case errors.Is(err, io.EOF):
		_ = b.encoder.Close()
		b.end(io.EOF)
	case err != nil:
		_ = b.encoder.Flush()
		b.end(err)
	case waits && len(p) > 0:
		_ = b.encoder.Flush()
	}
}

// end ends the compression and gives the encoder back to its pool. Read returns err after the rest of
// the output. The caller must hold mu.
func (b *compressedBody) end(err error) {
	if b.encoder != nil {
		b.encoder.Reset(nil)
		encoders[b.coding].Put(b.encoder)
		b.encoder = nil
	}
	b.err, b.input = err, nil
}

// Close ends the compression and closes the inner body.
func (b *compressedBody) Close() error {
	b.mu.Lock()
	if b.err == nil {
		b.end(http.ErrBodyReadAfterClose)
		b.output.Reset()
	}
	b.mu.Unlock()
	return b.ReadCloser.Close()
}
