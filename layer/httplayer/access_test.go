package httplayer

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/internal/caller/callertest"
	"github.com/gotower/gotower/layer"
)

func TestAccessorRequest(t *testing.T) {
	fromServer := httptest.NewRequest("PUT", "/a%2Fb?q=1", nil)
	fromServer.Host, fromServer.RemoteAddr = "web.default", "[::ffff:10.1.2.3]:4567"
	byTLS := httptest.NewRequest("GET", "/", nil)
	byTLS.TLS = &tls.ConnectionState{}
	absolute := httptest.NewRequest("GET", "http://other:81/", nil)
	ours, err := http.NewRequest("", "https://web.default:8443/x y?q", nil)
	require.NoError(t, err)
	ours.Host = "virtual"
	bare := &http.Request{}
	for name, tt := range map[string]struct {
		req                             *http.Request
		method, scheme, authority, path string
		source                          string
	}{
		"server":      {fromServer, "PUT", "http", "web.default", "/a%2Fb", "10.1.2.3:4567"},
		"server, TLS": {byTLS, "GET", "https", "example.com", "/", "192.0.2.1:1234"},
		"absolute":    {absolute, "GET", "http", "other:81", "/", "192.0.2.1:1234"},
		"client":      {ours, "GET", "https", "web.default:8443", "/x%20y", "invalid AddrPort"},
		"star":        {&http.Request{Method: "OPTIONS", URL: &url.URL{Path: "*"}}, "OPTIONS", "http", "", "*", "invalid AddrPort"},
		"empty path":  {&http.Request{URL: &url.URL{Host: "web"}}, "GET", "http", "web", "/", "invalid AddrPort"},
		"connect":     {&http.Request{Method: "CONNECT", URL: &url.URL{Host: "web:443"}}, "CONNECT", "http", "web:443", "", "invalid AddrPort"},
		"bare":        {bare, "GET", "http", "", "", "invalid AddrPort"},
	} {
		t.Run(name, func(t *testing.T) {
			var a HTTP
			assert.Equal(t, tt.method, a.Method(tt.req))
			assert.Equal(t, tt.scheme, a.Scheme(tt.req))
			assert.Equal(t, tt.authority, a.Authority(tt.req))
			assert.Equal(t, tt.path, a.Path(tt.req))
			assert.Equal(t, tt.source, a.Source(tt.req).String())
			assert.Empty(t, a.RequestHeader(tt.req).Get("Host"))
		})
	}
	assert.Equal(t, "q=1", HTTP{}.Query(fromServer))
	assert.Empty(t, HTTP{}.Query(byTLS))
	assert.Empty(t, HTTP{}.Query(bare))
	assert.Equal(t, netip.AddrPort{}, HTTP{}.Source(&http.Request{RemoteAddr: "@"}), "a Unix socket")
}

func TestAccessorResponse(t *testing.T) {
	var a HTTP
	rsp := &http.Response{
		StatusCode: 418,
		Header:     http.Header{"X-Two": {"1", "2"}, "X-One": {"3"}},
		Trailer:    http.Header{"Announced": nil},
	}
	assert.Equal(t, 418, a.Status(rsp))
	assert.Equal(t, "1", a.ResponseHeader(rsp).Get("x-two"))
	values, ok := a.ResponseHeader(rsp).(interface{ Values(name string) []string })
	require.True(t, ok)
	assert.Equal(t, []string{"1", "2"}, values.Values("x-two"))
	var pairs []string
	for name, value := range a.ResponseHeader(rsp).All() {
		pairs = append(pairs, name+"="+value)
	}
	slices.Sort(pairs)
	assert.Equal(t, []string{"X-One=3", "X-Two=1", "X-Two=2"}, pairs)
	for range a.ResponseHeader(rsp).All() {
		break
	}
	for name := range a.ResponseTrailer(rsp).All() {
		t.Errorf("%s has no value yet", name)
	}
	assert.Empty(t, a.ResponseTrailer(&http.Response{}).Get("x"))

	n := &noted{}
	a.Complete(t.Context(), &http.Response{StatusCode: 204}, n)
	assert.Equal(t, []error{nil}, n.ends)
}

func TestAccessorAllocations(t *testing.T) {
	var a layer.Accessor[*http.Request, *http.Response] = HTTP{}
	req := httptest.NewRequest("GET", "/path", nil)
	req.Header.Set("X", "y")
	rsp := &http.Response{Header: http.Header{"X": {"y"}}}
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		_ = a.Method(req) + a.Scheme(req)[:0] + a.Authority(req)[:0] + a.Path(req)[:0]
		_ = a.Source(req)
		_ = a.Query(req)
		_ = a.RequestHeader(req).Get("X")
		_ = a.ResponseHeader(rsp).Get("X")
		_ = a.ResponseTrailer(rsp).Get("X")
	}))
}

func TestSourceLabels(t *testing.T) {
	proven := func(cert *x509.Certificate) *tls.ConnectionState {
		return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}, PeerCertificates: []*x509.Certificate{cert}}
	}
	name := callertest.Certificate(t, "web.shop", "spiffe://x/web")
	type labels = map[string]string
	for what, tt := range map[string]struct {
		from string
		tls  *tls.ConnectionState
		want labels
	}{
		"by TLS":                       {"10.0.0.1:80", &tls.ConnectionState{}, labels{"tls": "true"}},
		"by TLS, from here":            {"127.0.0.1:80", &tls.ConnectionState{}, labels{"tls": "true"}},
		"a name":                       {"10.0.0.1:80", proven(name), labels{"tls": "true", "client_id": "web.shop"}},
		"a URI before a name":          {"10.0.0.1:80", proven(callertest.Certificate(t, "spiffe://x/web", "web.shop")), labels{"tls": "true", "client_id": "spiffe://x/web"}},
		"a certificate without a name": {"10.0.0.1:80", proven(&x509.Certificate{}), labels{"tls": "true"}},
		"not verified":                 {"10.0.0.1:80", &tls.ConnectionState{PeerCertificates: []*x509.Certificate{name}}, labels{"tls": "true"}},
		"in clear":                     {"10.0.0.1:80", nil, labels{"tls": "no_tls_from_remote"}},
		"in clear, from here":          {"[::1]:80", nil, labels{"tls": "loopback"}},
		"our own":                      {"", nil, nil},
	} {
		t.Run(what, func(t *testing.T) {
			require.Equal(t, tt.want, HTTP{}.SourceLabels(&http.Request{RemoteAddr: tt.from, TLS: tt.tls}))
		})
	}
}

// teeRecorder records the pieces of a body.
type teeRecorder struct {
	mu   sync.Mutex
	data []byte
	from []int64
}

func (c *teeRecorder) read(at int64, p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from = append(c.from, at)
	c.data = append(c.data[:at], p...)
}

func (c *teeRecorder) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.data)
}

func TestTeeRequestBodyCopiesRequest(t *testing.T) {
	var c teeRecorder
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web/", strings.NewReader("hello"))
	require.NoError(t, err)
	before := *r
	out := HTTP{}.TeeRequestBody(r, c.read)
	require.NotSame(t, r, out)
	require.Same(t, before.URL, out.URL)
	require.Equal(t, before.Body, r.Body, "as it was")
	require.Equal(t, r.ContentLength, out.ContentLength)
	require.Empty(t, c.String(), "nothing is read ahead")
	b, err := io.ReadAll(out.Body)
	require.NoError(t, err)
	require.Equal(t, "hello", string(b))
	require.Equal(t, "hello", c.String())
	require.NoError(t, out.Body.Close())

	again, err := out.GetBody()
	require.NoError(t, err)
	_, err = io.ReadFull(again, b[:2])
	require.NoError(t, err)
	require.Zero(t, c.from[len(c.from)-1], "a body that is sent again begins at 0 again")
}

func TestTeeRequestBodyWithoutBody(t *testing.T) {
	for name, body := range map[string]io.ReadCloser{"nil": nil, "NoBody": http.NoBody} {
		r := &http.Request{Body: body}
		require.Same(t, r, HTTP{}.TeeRequestBody(r, nil), name)
	}
	for name, answer := range map[string]struct {
		body io.ReadCloser
		err  error
	}{"NoBody": {http.NoBody, nil}, "error": {nil, errors.New("not again")}} {
		r := &http.Request{Body: io.NopCloser(strings.NewReader("x")), GetBody: func() (io.ReadCloser, error) { return answer.body, answer.err }}
		body, err := HTTP{}.TeeRequestBody(r, nil).GetBody()
		require.Equal(t, answer.err, err, name)
		require.Equal(t, answer.body, body, name)
	}
	r := &http.Request{Body: io.NopCloser(strings.NewReader("x"))}
	require.Nil(t, HTTP{}.TeeRequestBody(r, nil).GetBody)
}

func TestTeeResponseBodyWithoutBody(t *testing.T) {
	require.Nil(t, HTTP{}.TeeResponseBody(nil, nil))
	for name, r := range map[string]*http.Response{
		"nil": {}, "NoBody": {Body: http.NoBody}, "204": {StatusCode: 204, Body: io.NopCloser(nil)},
		"HEAD": {Request: &http.Request{Method: http.MethodHead}, Body: io.NopCloser(nil)},
	} {
		body := r.Body
		require.Equal(t, body, HTTP{}.TeeResponseBody(r, nil).Body, name)
	}
}

type (
	onlyReads  struct{ io.Reader }
	alsoWrites struct {
		onlyReads
		io.Writer
	}
	alsoHalf struct{ alsoWrites }
)

func (onlyReads) Close() error     { return nil }
func (alsoHalf) CloseWrite() error { return io.ErrNoProgress }

// A body keeps its methods Write and CloseWrite, even below the body that layers observe.
func TestTeeBodyKeepsMethods(t *testing.T) {
	var written bytes.Buffer
	bodies := map[string]io.ReadCloser{}
	plain := onlyReads{strings.NewReader("x")}
	bodies["plain"] = plain
	bodies["writes"] = alsoWrites{plain, &written}
	bodies["half"] = alsoHalf{alsoWrites{plain, &written}}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			var c teeRecorder
			r := &http.Response{StatusCode: http.StatusSwitchingProtocols, ContentLength: -1, Body: body}
			got := HTTP{}.TeeResponseBody(r, c.read)
			observed := Completion(t.Context(), got, nobody{})
			for _, out := range []io.ReadCloser{got.Body, observed.Body} {
				w, writes := out.(io.Writer)
				require.Equal(t, name != "plain", writes)
				if !writes {
					continue
				}
				_, err := io.WriteString(w, "w")
				require.NoError(t, err)
				var want error = http.ErrNotSupported
				if name == "half" {
					want = io.ErrNoProgress
				}
				require.ErrorIs(t, out.(halfCloser).CloseWrite(), want)
			}
		})
	}
	require.Equal(t, "wwww", written.String())
}

type nobody struct{}

func (nobody) Data(int)  {}
func (nobody) End(error) {}

// The reader of any body (short reads, data with an error, no data) gets the same results,
// and the recorded pieces are those that were read.
func TestTeeBodyTransparency(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOf(rapid.Byte()).Draw(t, "data")
		boom := errors.New("boom")
		source := func() io.Reader {
			r := io.MultiReader(bytes.NewReader(data), iotest.ErrReader(boom))
			return r
		}
		kind := rapid.SampledFrom([]func(io.Reader) io.Reader{
			iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader, func(r io.Reader) io.Reader { return r },
		}).Draw(t, "kind")
		want := kind(source())
		var c teeRecorder
		got := newTeeBody(io.NopCloser(kind(source())), c.read)
		var all []byte
		for {
			size := rapid.IntRange(1, 40).Draw(t, "size")
			a, b := make([]byte, size), make([]byte, size)
			n, err := want.Read(a)
			m, gotErr := got.Read(b)
			require.Equal(t, n, m)
			require.Equal(t, err, gotErr)
			require.Equal(t, a, b)
			all = append(all, b[:m]...)
			require.Equal(t, string(all), c.String())
			if err != nil {
				return
			}
		}
	})
}

// Each message of a stream is forwarded when it arrives, in both directions. Trailers follow.
func TestTeeBodyStream(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(map[bool]string{false: "HTTP/1", true: "HTTP/2"}[h2], func(t *testing.T) {
			protocols := new(http.Protocols)
			protocols.SetHTTP1(!h2)
			protocols.SetUnencryptedHTTP2(h2)
			upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rc := http.NewResponseController(w)
				_ = rc.EnableFullDuplex()
				w.Header().Set("Trailer", "X-Sum")
				_ = rc.Flush()
				for p := make([]byte, 10); ; {
					n, err := r.Body.Read(p)
					_, _ = w.Write(bytes.ToUpper(p[:n]))
					_ = rc.Flush()
					if err != nil {
						w.Header().Set("X-Sum", "sum")
						return
					}
				}
			}))
			upstream.Config.Protocols = protocols
			upstream.Start()
			defer upstream.Close()
			transport := &http.Transport{Protocols: protocols}
			defer transport.CloseIdleConnections()

			var asked, answered teeRecorder
			r, w := io.Pipe()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, upstream.URL, r)
			require.NoError(t, err)
			rsp, err := transport.RoundTrip(HTTP{}.TeeRequestBody(req, asked.read))
			require.NoError(t, err)
			rsp = HTTP{}.TeeResponseBody(rsp, answered.read)
			defer rsp.Body.Close()
			for _, message := range []string{"a", "b", "c"} {
				_, err := io.WriteString(w, message)
				require.NoError(t, err)
				got := make([]byte, 1)
				_, err = io.ReadFull(rsp.Body, got)
				require.NoError(t, err, "not waited for more")
				require.Equal(t, strings.ToUpper(message), string(got))
			}
			require.NoError(t, w.Close())
			_, err = io.ReadAll(rsp.Body)
			require.NoError(t, err)
			require.Equal(t, "sum", rsp.Trailer.Get("X-Sum"))
			require.Equal(t, "abc", asked.String())
			require.Equal(t, "ABC", answered.String())
		})
	}
}

// net/http may send a request again if its connection was closed. The body from GetBody is
// recorded from offset 0.
func TestTeeRequestBodyRetry(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	defer upstream.Close()
	var c teeRecorder
	conns := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { conns++ }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, upstream.URL, strings.NewReader("twice"))
	require.NoError(t, err)
	out := HTTP{}.TeeRequestBody(req, c.read)
	for range 2 {
		rsp, err := upstream.Client().Transport.RoundTrip(out)
		require.NoError(t, err)
		b, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.Equal(t, "twice", string(b))
		require.NoError(t, rsp.Body.Close())
		require.Equal(t, "twice", c.String())
		out.Body, err = out.GetBody()
		require.NoError(t, err)
	}
	require.Equal(t, 2, conns)
}

func BenchmarkTeeBody(b *testing.B) {
	read := func(int64, []byte) {}
	p := make([]byte, 1024)
	data := bytes.Repeat([]byte("x"), 1024)
	b.ReportAllocs()
	for b.Loop() {
		body := newTeeBody(io.NopCloser(bytes.NewReader(data)), read)
		_, _ = body.Read(p)
	}
}
