package httpclient_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/httpclient"
)

// mirror answers with the request: its line and its fields, except those of the connection. It compresses the
// answer if the client asks for it.
func mirror(w http.ResponseWriter, r *http.Request) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s host=%s length=%d\n", r.Method, r.RequestURI, r.Host, r.ContentLength)
	fields := make([]string, 0, len(r.Header))
	for name, values := range r.Header {
		fields = append(fields, fmt.Sprintf("%s: %q\n", name, values))
	}
	slices.Sort(fields)
	b.WriteString(strings.Join(fields, ""))
	_, _ = io.Copy(&b, r.Body)
	if r.Header.Get("Accept-Encoding") != "gzip" {
		_, _ = w.Write(b.Bytes())
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	zip := gzip.NewWriter(w)
	_, _ = zip.Write(b.Bytes())
	_ = zip.Close()
}

// A request arrives as from http.Transport, and its response is the same.
func TestRoundTripAsTransport(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(mirror))
	t.Cleanup(s.Close)
	theirs := &http.Transport{}
	t.Cleanup(theirs.CloseIdleConnections)
	for name, ours := range map[string]http.RoundTripper{
		"client":    httpclient.New(t.Context(), "web", httpclient.WithAddrs(s.Listener.Addr().String())),
		"transport": httpclient.NewTransport(t.Context()),
	} {
		for request, change := range map[string]func(*http.Request){
			"plain":           func(*http.Request) {},
			"own agent":       func(r *http.Request) { r.Header.Set("User-Agent", "curl") },
			"no agent":        func(r *http.Request) { r.Header.Set("User-Agent", "") },
			"nil agent":       func(r *http.Request) { r.Header["User-Agent"] = nil },
			"own coding":      func(r *http.Request) { r.Header.Set("Accept-Encoding", "identity") },
			"gzip by hand":    func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") },
			"range":           func(r *http.Request) { r.Header.Set("Range", "bytes=0-") },
			"HEAD":            func(r *http.Request) { r.Method = http.MethodHead },
			"no method":       func(r *http.Request) { r.Method = "" },
			"own host":        func(r *http.Request) { r.Host = "other.example" },
			"post":            func(r *http.Request) { *r = *post(t, s.URL, "hello") },
			"expect":          func(r *http.Request) { *r = *post(t, s.URL, "hello"); r.Header.Set("Expect", "100-continue") },
			"chunked":         func(r *http.Request) { *r = *post(t, s.URL, "hello"); r.ContentLength = -1 },
			"close":           func(r *http.Request) { r.Close = true },
			"query and slash": func(r *http.Request) { r.URL.Path, r.URL.RawQuery = "/a//b", "q=1&r" },
		} {
			t.Run(name+"/"+request, func(t *testing.T) {
				req := post(t, s.URL+"/path", "")
				req.Method, req.Body = http.MethodGet, http.NoBody
				change(req)
				before := req.Header.Clone()
				want, got := result(t, theirs, req), result(t, ours, req)
				require.Equal(t, want, got)
				require.Equal(t, before, req.Header, "the request is not changed")
			})
		}
	}
}

func post(t *testing.T, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	return req
}

// result returns what a caller sees of the response.
func result(t *testing.T, rt http.RoundTripper, req *http.Request) string {
	t.Helper()
	if req.GetBody != nil && req.Body != http.NoBody {
		var err error
		req.Body, err = req.GetBody()
		require.NoError(t, err)
	}
	rsp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	require.Same(t, req, rsp.Request)
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	rsp.Header.Del("Date")
	return fmt.Sprint(rsp.Status, rsp.Proto, rsp.ContentLength, rsp.TransferEncoding, rsp.Uncompressed, rsp.Close, rsp.Header, "\n", string(text))
}

// A broken or a slow body of gzip behaves as that of http.Transport.
func TestGzipBody(t *testing.T) {
	var full bytes.Buffer
	zip := gzip.NewWriter(&full)
	_, _ = io.WriteString(zip, strings.Repeat("hello ", 1000))
	require.NoError(t, zip.Close())
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "GZIP")
		switch r.URL.Path {
		case "/short":
			_, _ = w.Write(full.Bytes()[:full.Len()/2])
		case "/other":
			_, _ = io.WriteString(w, "this is not gzip")
		case "/empty":
		case "/stream":
			out := gzip.NewWriter(w)
			_, _ = io.WriteString(out, "first")
			_ = out.Flush()
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
	t.Cleanup(s.Close)
	theirs := &http.Transport{}
	t.Cleanup(theirs.CloseIdleConnections)
	ours := httpclient.NewTransport(t.Context())
	for _, path := range []string{"/short", "/other", "/empty"} {
		read := func(rt http.RoundTripper) string {
			rsp, err := rt.RoundTrip(get(t, s.URL+path))
			require.NoError(t, err)
			text, err := io.ReadAll(rsp.Body)
			require.NoError(t, rsp.Body.Close())
			_, again := rsp.Body.Read(make([]byte, 1))
			return fmt.Sprint(len(text), err, again != nil, rsp.Uncompressed)
		}
		require.Equal(t, read(theirs), read(ours), path)
	}
	rsp, err := ours.RoundTrip(get(t, s.URL+"/stream"))
	require.NoError(t, err)
	first := make([]byte, 5)
	_, err = io.ReadFull(rsp.Body, first)
	require.NoError(t, err)
	require.Equal(t, "first", string(first))
	ended := make(chan error)
	go func() {
		_, err := rsp.Body.Read(first)
		ended <- err
	}()
	require.NoError(t, rsp.Body.Close())
	require.Error(t, <-ended)

	plain := httpclient.NewTransport(t.Context(), httpclient.WithoutDecompression())
	rsp, err = plain.RoundTrip(get(t, s.URL+"/short"))
	require.NoError(t, err)
	defer rsp.Body.Close()
	require.Equal(t, "GZIP", rsp.Header.Get("Content-Encoding"))
}

func get(t *testing.T, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	return req
}

// The server selects HTTP/2 by ALPN, also if there is no configuration for it.
func TestTransportHTTP2(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
		s.EnableHTTP2 = h2
		s.StartTLS()
		t.Cleanup(s.Close)
		trusting := s.Client().Transport.(*http.Transport).TLSClientConfig
		ours := httpclient.NewTransport(t.Context(), httpclient.WithTLS(trusting))
		require.Equal(t, body(t, s.Client(), s.URL), body(t, client(t, ours), s.URL))
	}
}

// The hooks of httptrace reach through all layers.
func TestRoundTripTrace(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints) }))
	t.Cleanup(s.Close)
	var called []string
	trace := &httptrace.ClientTrace{
		GotConn:              func(httptrace.GotConnInfo) { called = append(called, "conn") },
		WroteRequest:         func(httptrace.WroteRequestInfo) { called = append(called, "wrote") },
		GotFirstResponseByte: func() { called = append(called, "first") },
		Got1xxResponse: func(int, textproto.MIMEHeader) error {
			called = append(called, "hint")
			return nil
		},
	}
	for range 2 {
		called = nil
		rt := httpclient.NewTransport(t.Context())
		req := get(t, s.URL)
		rsp, err := rt.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.Equal(t, []string{"conn", "wrote", "first", "hint"}, called)
	}
}

// A redirect to another host does not get a response of the target.
func TestClientRefusesRedirect(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := map[string]string{"/away": "http://other.example/", "/here": "/path"}[r.URL.Path]
		if to == "" {
			_, _ = io.WriteString(w, "here")
			return
		}
		http.Redirect(w, r, to, http.StatusFound)
	}))
	t.Cleanup(s.Close)
	c := client(t, httpclient.New(t.Context(), "web", httpclient.WithAddrs(s.Listener.Addr().String())))
	_, err := c.Do(get(t, "http://web/away"))
	require.ErrorContains(t, err, "the redirect from web:80 to other.example:80 leaves the target of this client: NewTransport")
	require.Equal(t, "here", body(t, c, "http://web/here"))
}

func TestRoundTripArguments(t *testing.T) {
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs("127.0.0.1:1"))
	_, err := web.RoundTrip(&http.Request{})
	require.EqualError(t, err, "httpclient: web: the request has no URL")
	req := get(t, "http://web/")
	req.Header = nil
	_, err = web.RoundTrip(req)
	require.EqualError(t, err, "httpclient: web: the request has no Header")
	body := &closing{Reader: strings.NewReader("")}
	req.Body = body
	_, err = web.RoundTrip(req)
	require.Error(t, err)
	require.True(t, body.closed)
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// CloseIdleConnections closes connections, and the next request makes a new one.
func TestCloseIdleConnections(t *testing.T) {
	conns := make(chan http.ConnState, 100)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) { conns <- state }
	s.Start()
	t.Cleanup(s.Close)
	until := func(want http.ConnState) {
		for {
			select {
			case got := <-conns:
				if got == want {
					return
				}
			case <-time.After(time.Minute):
				t.Fatal("no connection became " + want.String())
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, rt := range []http.RoundTripper{
		httpclient.New(ctx, "web", httpclient.WithAddrs(s.Listener.Addr().String())), httpclient.NewTransport(ctx),
	} {
		c := &http.Client{Transport: rt}
		for range 2 {
			body(t, c, s.URL)
			until(http.StateNew)
			c.CloseIdleConnections()
			until(http.StateClosed)
		}
	}
}
