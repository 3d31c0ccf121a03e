package httplayer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// copies takes what Fork gives.
type copies struct {
	calls int
	req   *http.Request
}

func (c *copies) whole(copied *http.Request, ok bool) {
	c.calls++
	if ok != (copied != nil) {
		panic("a copy without ok, or ok without a copy")
	}
	c.req = copied
}

func (c *copies) body(t *testing.T) string {
	t.Helper()
	require.NotNil(t, c.req)
	b, err := io.ReadAll(c.req.Body)
	require.NoError(t, err)
	return string(b)
}

func TestTeeRequestHeaders(t *testing.T) {
	gone := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://web:80/a?b=c", strings.NewReader("hello"))
	require.NoError(t, err)
	req.Host, req.RemoteAddr, req.Close, req.Cancel = "elsewhere", "10.0.0.1:7", true, gone //nolint:staticcheck // to see it go
	req.Header = http.Header{"Expect": {"100-continue"}, "A": {"b", "c"}}
	var c copies
	forked := Editor{}.TeeRequest(req, 5, c.whole)
	_, err = io.Copy(io.Discard, forked.Body)
	require.NoError(t, err)
	cancel()

	got := c.req
	assert.Equal(t, http.MethodPut, got.Method)
	assert.Equal(t, "http://web:80/a?b=c", got.URL.String())
	assert.Equal(t, "elsewhere", got.Host)
	assert.Equal(t, "10.0.0.1:7", got.RemoteAddr)
	assert.Equal(t, http.Header{"A": {"b", "c"}}, got.Header)
	assert.EqualValues(t, 5, got.ContentLength)
	assert.False(t, got.Close)
	assert.Nil(t, got.GetBody)
	assert.Nil(t, got.Cancel) //nolint:staticcheck // as above
	assert.NoError(t, got.Context().Err())
	assert.Nil(t, got.Context().Done())

	got.Header.Set("A", "x")
	got.Header["A"][0] = "y"
	got.URL.Path = "/z"
	assert.Equal(t, http.Header{"Expect": {"100-continue"}, "A": {"b", "c"}}, req.Header)
	assert.Equal(t, "/a", req.URL.Path)
	assert.NotNil(t, forked.GetBody, "retries of the request get bodies as before")
	assert.True(t, forked.Close)
	assert.Same(t, ctx, forked.Context())
}

func TestTeeRequestWithoutBody(t *testing.T) {
	for name, body := range map[string]io.ReadCloser{"nil": nil, "no body": http.NoBody} {
		var c copies
		req := &http.Request{Method: http.MethodGet, Body: body}
		assert.Same(t, req, Editor{}.TeeRequest(req, 0, c.whole), name)
		assert.Equal(t, 1, c.calls, name)
		require.NotNil(t, c.req, name)
		assert.Equal(t, body, c.req.Body, name)
	}
}

func TestTeeRequestTunnel(t *testing.T) {
	for name, req := range map[string]*http.Request{
		"connect": {Method: http.MethodConnect},
		"upgrade": {Method: http.MethodGet, Header: http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}}},
	} {
		var c copies
		assert.Same(t, req, Editor{}.TeeRequest(req, 1<<20, c.whole), name)
		assert.Equal(t, copies{calls: 1}, c, name)
	}
}

func TestTeeRequestBody(t *testing.T) {
	const limit = 8
	long := strings.Repeat("x", limit)
	all := func(b io.ReadCloser) { _, _ = io.Copy(io.Discard, b); _ = b.Close() }
	some := func(n int64) func(io.ReadCloser) {
		return func(b io.ReadCloser) { _, _ = io.CopyN(io.Discard, b, n); _ = b.Close() }
	}
	for name, tt := range map[string]struct {
		body   string
		length int64 // -1 and 0: unknown
		limit  int64
		read   func(io.ReadCloser)
		want   string // "" for none
	}{
		"the cap":                        {long, limit, limit, all, long},
		"the cap, in chunks":             {long, -1, limit, all, long},
		"the cap, of a client":           {long, 0, limit, all, long},
		"above it":                       {long + "x", limit + 1, limit, all, ""},
		"above it, in chunks":            {long + "x", -1, limit, all, ""},
		"nothing may be kept":            {"x", 1, 0, all, ""},
		"nothing may be kept, in chunks": {"x", -1, 0, all, ""},
		"shorter than it says":           {"abc", 4, limit, all, ""},
		"longer than it says":            {"abc", 2, limit, all, ""},
		"read as far as it says":         {"abc", 3, limit, some(3), "abc"},
		"read less far":                  {"abc", 3, limit, some(2), ""},
		"in chunks, without the end":     {"abc", -1, limit, some(3), ""},
		"not read":                       {"abc", 3, limit, some(0), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var c copies
			req := &http.Request{Method: http.MethodPut, Body: io.NopCloser(strings.NewReader(tt.body)), ContentLength: tt.length}
			tt.read(Editor{}.TeeRequest(req, tt.limit, c.whole).Body)
			assert.Equal(t, 1, c.calls)
			if tt.want == "" {
				assert.Nil(t, c.req)
				return
			}
			assert.Equal(t, tt.want, c.body(t))
			assert.Equal(t, tt.length, c.req.ContentLength)
		})
	}
}

// The copy does not change when the caller reuses its buffers.
func TestTeeRequestBuffer(t *testing.T) {
	text := []byte("hello")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://web/", bytes.NewReader(text))
	require.NoError(t, err)
	var c copies
	forked := Editor{}.TeeRequest(req, 100, c.whole)
	buf := make([]byte, 5)
	_, err = io.ReadFull(forked.Body, buf)
	require.NoError(t, err)
	_, err = forked.Body.Read(buf[:1])
	require.ErrorIs(t, err, io.EOF)
	copy(text, "XXXXX")
	copy(buf, "YYYYY")
	assert.Equal(t, "hello", c.body(t))
}

func TestTeeRequestTrailers(t *testing.T) {
	req := &http.Request{Method: http.MethodPut, ContentLength: -1, Trailer: http.Header{"Sum": nil}}
	req.Body = &ending{Reader: strings.NewReader("hello"), end: func() { req.Trailer.Set("Sum", "5") }}
	var c copies
	_, err := io.Copy(io.Discard, Editor{}.TeeRequest(req, 100, c.whole).Body)
	require.NoError(t, err)
	assert.Equal(t, "hello", c.body(t))
	assert.Equal(t, http.Header{"Sum": {"5"}}, c.req.Trailer)
	req.Trailer.Set("Sum", "6")
	assert.Equal(t, http.Header{"Sum": {"5"}}, c.req.Trailer)
}

type ending struct {
	io.Reader
	end    func()
	closed bool
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		e.end()
	}
	return n, err
}

func (e *ending) Close() error {
	e.closed = true
	return errors.New("closed")
}

func TestTeeRequestCloseAndErrors(t *testing.T) {
	broken := errors.New("broken")
	body := &ending{Reader: io.MultiReader(strings.NewReader("ab"), brokenReader{broken}), end: func() {}}
	var c copies
	forked := Editor{}.TeeRequest(&http.Request{Method: http.MethodPut, ContentLength: 5, Body: body}, 100, c.whole)
	got, err := io.ReadAll(forked.Body)
	assert.Equal(t, "ab", string(got))
	assert.Equal(t, broken, err)
	assert.False(t, body.closed)
	require.EqualError(t, forked.Body.Close(), "closed")
	assert.True(t, body.closed)
	assert.Equal(t, copies{calls: 1}, c)
}

type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

// Any body, read in any way, reaches its reader unchanged, and the copy equals it.
func FuzzTeeRequestBody(f *testing.F) {
	f.Add([]byte("hello"), int64(5), int64(8), 2)
	f.Add([]byte("hello"), int64(-1), int64(5), 1)
	f.Add([]byte(""), int64(-1), int64(0), 3)
	f.Fuzz(func(t *testing.T, text []byte, length, limit int64, piece int) {
		if piece < 1 || piece > 1<<10 || limit > 1<<20 || length < -1 {
			t.Skip()
		}
		var c copies
		req := &http.Request{Method: http.MethodPut, ContentLength: length, Body: io.NopCloser(bytes.NewReader(text))}
		forked := Editor{}.TeeRequest(req, limit, c.whole)
		got, err := io.ReadAll(io.NewSectionReader(readerAt{forked.Body, piece}, 0, int64(len(text)+1)))
		require.NoError(t, err)
		require.Equal(t, string(text), string(got))
		fits := limit > 0 && int64(len(text)) <= limit && (length <= 0 || length == int64(len(text)))
		require.Equal(t, 1, c.calls)
		require.Equal(t, fits, c.req != nil)
		if fits {
			require.Equal(t, string(text), c.body(t))
		}
	})
}

// readerAt reads on in pieces, wherever it is asked to read.
type readerAt struct {
	io.Reader
	piece int
}

func (r readerAt) ReadAt(p []byte, _ int64) (int, error) { return r.Read(p[:min(len(p), r.piece)]) }
