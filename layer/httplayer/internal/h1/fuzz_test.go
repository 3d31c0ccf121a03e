package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// fixedConn receives the bytes of in, at most step at once, and keeps the
// written bytes.
type fixedConn struct {
	net.Conn
	step int

	mu     sync.Mutex
	in     []byte
	out    bytes.Buffer
	closed bool
}

func (c *fixedConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.in) == 0 || c.closed {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), max(c.step, 1))], c.in)
	c.in = c.in[n:]
	return n, nil
}

func (c *fixedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(p)
}

func (c *fixedConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return nil
}

func (c *fixedConn) written() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.out.Bytes())
}

func (*fixedConn) RemoteAddr() net.Addr             { return nil }
func (*fixedConn) SetDeadline(time.Time) error      { return nil }
func (*fixedConn) SetReadDeadline(time.Time) error  { return nil }
func (*fixedConn) SetWriteDeadline(time.Time) error { return nil }

// memoryBody is a body that holds all its bytes.
type memoryBody struct{ *bytes.Reader }

func (b memoryBody) Pending() (int, bool) { return b.Len(), true }
func (memoryBody) Close() error           { return nil }

// received is a message with its body.
type received struct {
	req  *http.Request
	body []byte
}

// engineRequests returns the requests that the engine finds in bytes.
func engineRequests(in []byte, step int) (all []received) {
	exchange := func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		all = append(all, received{req, body})
		return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
	}
	cfg := &message.ServerConfig{Exchange: exchange, Sweeper: new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler)}
	_ = NewServerConn(context.Background(), &fixedConn{in: in, step: step}, cfg).Serve()
	return all
}

// sentRequest returns the bytes by which a client sends a request.
func sentRequest(r received) ([]byte, error) {
	conn := new(fixedConn)
	c := NewClientConn(conn, func(*ClientConn, bool) {})
	req := r.req.Clone(context.Background())
	if req.ContentLength != 0 {
		req.Body = memoryBody{bytes.NewReader(r.body)}
	}
	_, err := c.RoundTrip(req)
	if err == errServerClosed {
		err = nil
	}
	return conn.written(), err
}

// comparable header of both parsers.
func plainHeader(h http.Header) http.Header {
	h = maps.Clone(h)
	message.RemoveHopByHop(h)
	for _, name := range []string{"Trailer", "Pragma", "Cache-Control", "Connection", "Upgrade"} {
		delete(h, name) // net/http edits them, or the engine removes them
	}
	return h
}

var requestSeeds = []string{
	smallRequest, browserRequest,
	"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
	"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n",
	"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\nX-T: v\r\n\r\n",
	"GET http://h/p?q HTTP/1.1\r\nHost: a\r\nConnection: close, x-y\r\nX-Y: 1\r\n\r\n",
	"GET http://u%80 HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET /a%20b/%2f/../c;d?e=f&g HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
	"OPTIONS * HTTP/1.1\r\nhost: [::1]:80\r\n\r\n",
	"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nTe: trailers\r\n\r\n",
}

// blankInChunk matches what only net/http rejects in the line of a chunk.
var blankInChunk = regexp.MustCompile(`[0-9A-Fa-f][ \t]+;|[0-9A-Fa-f]{17}|;[^\n]{200}`)

// strictLine drops the empty lines before a request, and repairs what net/http, but no other proxy,
// rejects in the request line.
func strictLine(r *bufio.Reader) *bufio.Reader {
	line := ""
	for line == "" || line == "\n" || line == "\r\n" {
		var err error
		if line, err = r.ReadString('\n'); err != nil {
			break
		}
	}
	if !strings.HasPrefix(line, "HTTP/") {
		line = regexp.MustCompile(" +").ReplaceAllString(line, " ")
	}
	line = regexp.MustCompile(`^HTTP/([2-9]\.\d|1\.[2-9]) +`).ReplaceAllString(line, "HTTP/1.1 ")
	line = regexp.MustCompile(`HTTP/1\.[2-9](\r?\n)$`).ReplaceAllString(line, "HTTP/1.1$1")
	return bufio.NewReader(io.MultiReader(strings.NewReader(line), r))
}

// checkRequests compares the engine with net/http: it accepts nothing that
// net/http rejects, and what it sends on is one message with the same meaning.
func checkRequests(t *testing.T, in []byte) {
	got := engineRequests(in, len(in))
	if slow := engineRequests(in, 1); len(slow) != len(got) {
		t.Errorf("%q: %d requests at once, %d in single bytes", in, len(got), len(slow))
	}
	r := bufio.NewReader(bytes.NewReader(in))
	for _, r1 := range got {
		r = strictLine(r)
		want, err := http.ReadRequest(r)
		var body []byte
		if err == nil {
			body, err = io.ReadAll(want.Body)
		}
		if err != nil && want != nil && (blankInChunk.Match(in) || strings.Contains(err.Error(), "trailer")) {
			return // only net/http rejects it
		}
		if err != nil {
			t.Errorf("%q: net/http rejects it: %v", in, err)
			return
		}
		req := r1.req
		assert.Equal(t, want.Method, req.Method, "%q", in)
		assert.Equal(t, want.RequestURI, req.RequestURI, "%q", in)
		assert.Equal(t, want.URL, req.URL, "%q", in)
		assert.Equal(t, want.Host, req.Host, "%q", in)
		assert.Equal(t, want.Proto, req.Proto, "%q", in)
		assert.Equal(t, want.ContentLength, req.ContentLength, "%q", in)
		assert.Equal(t, want.Close, req.Close, "%q", in)
		assert.Equal(t, string(body), string(r1.body), "%q", in)
		assert.Equal(t, plainHeader(want.Header), plainHeader(req.Header), "%q", in)
		checkSent(t, r1)
	}
}

func checkSent(t *testing.T, r received) {
	sent, err := sentRequest(r)
	if err != nil {
		t.Errorf("%s %q is accepted and cannot be sent: %v", r.req.Method, r.req.RequestURI, err)
		return
	}
	again := engineRequests(sent, len(sent))
	rest := bufio.NewReader(bytes.NewReader(sent))
	req, err := http.ReadRequest(rest)
	require.NoError(t, err, "%q", sent)
	body, err := io.ReadAll(req.Body)
	require.NoError(t, err, "%q", sent)
	assert.Zero(t, rest.Buffered(), "%q", sent)
	assert.Len(t, again, 1, "%q", sent)
	assert.Equal(t, string(r.body), string(body), "%q", sent)
	assert.Equal(t, r.req.Method, req.Method)
	assert.Equal(t, r.req.Host, req.Host)
	assert.Equal(t, normalPath(r.req.URL), normalPath(req.URL), "%q", sent)
	assert.Equal(t, r.req.URL.RawQuery, req.URL.RawQuery)
	want := plainHeader(r.req.Header)
	if r.req.Method == http.MethodConnect {
		delete(want, "Content-Length")
	}
	have := plainHeader(req.Header)
	if have.Get("Content-Length") == "0" && want["Content-Length"] == nil || want.Get("Content-Length") != "" && r.req.ContentLength == 0 {
		delete(have, "Content-Length")
		delete(want, "Content-Length")
	}
	if n := want["Content-Length"]; n != nil {
		have["Content-Length"] = n // 00005 is sent as 5; the body was compared
	}
	assert.Equal(t, want, have, "%q", sent)
}

func normalPath(u *url.URL) string {
	if path := u.EscapedPath(); path != "" {
		return path
	}
	return "/"
}

func FuzzRequest(f *testing.F) {
	for _, seed := range requestSeeds {
		f.Add([]byte(seed))
	}
	for _, tt := range strict {
		f.Add([]byte(tt.request))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 64<<10 {
			checkRequests(t, in)
		}
	})
}

// engineResponse returns the final response that a client finds in bytes.
func engineResponse(in []byte, method string) (*http.Response, []byte, error) {
	req := &http.Request{Method: method, URL: &url.URL{Host: "a:1"}}
	rsp, err := NewClientConn(&fixedConn{in: in, step: len(in)}, func(*ClientConn, bool) {}).RoundTrip(req)
	if err != nil {
		return nil, nil, err
	}
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	return rsp, body, err
}

func netResponse(in []byte, req *http.Request) (rsp *http.Response, body []byte, err error) {
	r := bufio.NewReader(bytes.NewReader(in))
	for {
		r = strictLine(r)
		rsp, err = http.ReadResponse(r, req)
		if err != nil || rsp.StatusCode >= 200 || rsp.StatusCode == 101 {
			break
		}
	}
	if err != nil {
		return nil, nil, err
	}
	body, err = io.ReadAll(rsp.Body)
	return rsp, body, err
}

func checkResponse(t *testing.T, in []byte, method string) {
	req := &http.Request{Method: method}
	rsp, body, err := engineResponse(in, method)
	if err != nil || method == http.MethodConnect && rsp.StatusCode/100 == 2 {
		return
	}
	want, wantBody, err := netResponse(in, req)
	if err != nil && (strings.Contains(err.Error(), "trailer") || strings.Contains(err.Error(), "multiple Content-Length")) {
		return // only net/http rejects it; for the latter, 1 and 01 are two lengths
	}
	if err != nil {
		t.Errorf("%q: net/http rejects it: %v", in, err)
		return
	}
	assert.Equal(t, want.StatusCode, rsp.StatusCode, "%q", in)
	assert.Equal(t, want.Proto, rsp.Proto, "%q", in)
	assert.Equal(t, string(wantBody), string(body), "%q", in)
	if bytes.Contains(bytes.ToLower(in), []byte("transfer-encoding")) {
		delete(want.Header, "Content-Length") // without a body, net/http keeps a length that does not count
		delete(rsp.Header, "Content-Length")
	}
	assert.Equal(t, plainHeader(want.Header), plainHeader(rsp.Header), "%q", in)
	if method != http.MethodHead && message.BodyAllowed(want.StatusCode) {
		assert.Equal(t, want.ContentLength, rsp.ContentLength, "%q", in)
	}

	// It is sent on as one message.
	rsp.Body = memoryBody{bytes.NewReader(body)}
	if len(body) == 0 {
		rsp.Body = http.NoBody
	}
	conn := &fixedConn{in: []byte(method + " / HTTP/1.1\r\nHost: a\r\n\r\n"), step: 1000}
	if method == http.MethodConnect {
		conn.in = []byte("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	cfg := &message.ServerConfig{
		Exchange: func(*http.Request) (*http.Response, error) { return rsp, nil },
		Sweeper:  new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler),
	}
	require.NoError(t, NewServerConn(context.Background(), conn, cfg).Serve(), "%q", in)
	r := bufio.NewReader(bytes.NewReader(conn.written()))
	sent, err := http.ReadResponse(r, req)
	require.NoError(t, err, "%q: %q", in, conn.written())
	sentBody, err := io.ReadAll(sent.Body)
	require.NoError(t, err, "%q: %q", in, conn.written())
	assert.Zero(t, r.Buffered(), "%q: %q", in, conn.written())
	assert.Equal(t, rsp.StatusCode, sent.StatusCode)
	assert.Equal(t, string(body), string(sentBody), "%q: %q", in, conn.written())
}

var responseSeeds = []string{
	"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: a\r\n\r\n1\r\na\r\n2;x\r\nbc\r\n0\r\nA: b\r\n\r\n",
	"HTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 100\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
	"HTTP/1.0 404 Not Found\r\nConnection: keep-alive, x\r\nX: 1\r\nDate: x\r\n\r\nuntil close",
	"HTTP/1.1 204 No\r\n\r\n", "HTTP/1.1 304\r\nEtag: a\r\nContent-Length: 5\r\n\r\n",
	"HTTP/1.1 999 \r\nContent-Length: 0\r\nKeep-Alive: 5\r\n\r\n",
}

func FuzzResponse(f *testing.F) {
	for _, seed := range responseSeeds {
		f.Add([]byte(seed), uint8(0))
		f.Add([]byte(seed), uint8(1))
	}
	methods := []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodConnect}
	f.Fuzz(func(t *testing.T, in []byte, method uint8) {
		if len(in) < 64<<10 {
			checkResponse(t, in, methods[int(method)%len(methods)])
		}
	})
}

type discardOwner struct{}

func (discardOwner) interrupt()     {}
func (discardOwner) bodyEnded(bool) {}

// chunkedBody reads a chunked body in pieces of step bytes, with a buffer of size.
func chunkedBody(in []byte, step, size int) ([]byte, error) {
	src := &source{conn: &fixedConn{in: in, step: step}, failed: func(err error) error { return err }}
	defer src.drop()
	b := &body{framing: byChunks, src: src, owner: discardOwner{}, trailer: make(http.Header)}
	var out []byte
	p := make([]byte, size)
	for {
		pending, eof := b.Pending()
		n, err := b.Read(p)
		if n < min(pending, size) && err == nil {
			return nil, errors.New("less than pending was read")
		}
		if eof && pending == 0 && err != io.EOF {
			return nil, errors.New("the end was pending")
		}
		out = append(out, p[:n]...)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func FuzzChunks(f *testing.F) {
	for _, seed := range []string{
		"0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "3;a=b\r\nhel\r\n02\r\nlo\r\n0\r\nX-T: v\r\n\r\n",
		"A\r\n0123456789\r\n1;\r\na\r\n0;x=\"y\"\r\nA: b\r\nB: c\r\n\r\nrest",
	} {
		f.Add([]byte(seed), uint16(1), uint16(3))
	}
	f.Fuzz(func(t *testing.T, in []byte, step, size uint16) {
		if len(in) > 64<<10 {
			return
		}
		whole, wholeErr := chunkedBody(in, len(in), 4096)
		pieces, err := chunkedBody(in, int(step)%300+1, int(size)%3000+1)
		assert.Equal(t, wholeErr == nil, err == nil, "%q: %v, in pieces %v", in, wholeErr, err)
		assert.Equal(t, whole, pieces, "%q", in)
		if err != nil {
			return
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(in)))
		require.NoError(t, err, "%q", in)
		assert.Equal(t, string(want), string(whole), "%q", in)
	})
}

// The fuzz targets run on the seeds; this mutates them a little in each test.
func TestMutatedMessages(t *testing.T) {
	t.Parallel()
	parts := []string{
		"\r\n", "\n", "\r", " ", "\t", "\x00", "\x7f", "\x80", ":", ",", ";", "0", "5", "+5", "chunked", "gzip, chunked",
		"Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "Transfer-Encoding:\x0bchunked\r\n", "Host: b\r\n", "Connection: close\r\n",
		"content-length : 5\r\n", " folded\r\n", "%", "%zz", "?", "#", "//", "http://", "@", "[", "HTTP/1.0", "\r\n\r\n", "ffffffffffffffff",
	}
	for i, seed := range append(append([]string(nil), requestSeeds...), responseSeeds...) {
		for _, part := range parts {
			for at := 0; at <= len(seed); at += 1 + len(seed)/25 {
				for _, text := range []string{seed[:at] + part + seed[at:], seed[:at] + part + strings.TrimPrefix(seed[at:], seed[at:min(at+len(part), len(seed))])} {
					if i < len(requestSeeds) {
						checkRequests(t, []byte(text))
					} else {
						checkResponse(t, []byte(text), http.MethodGet)
					}
				}
			}
		}
		if t.Failed() {
			return
		}
	}
}
