package httplayer

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

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
	out := Accessor{}.TeeRequestBody(r, c.read)
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
		require.Same(t, r, Accessor{}.TeeRequestBody(r, nil), name)
	}
	for name, answer := range map[string]struct {
		body io.ReadCloser
		err  error
	}{"NoBody": {http.NoBody, nil}, "error": {nil, errors.New("not again")}} {
		r := &http.Request{Body: io.NopCloser(strings.NewReader("x")), GetBody: func() (io.ReadCloser, error) { return answer.body, answer.err }}
		body, err := Accessor{}.TeeRequestBody(r, nil).GetBody()
		require.Equal(t, answer.err, err, name)
		require.Equal(t, answer.body, body, name)
	}
	r := &http.Request{Body: io.NopCloser(strings.NewReader("x"))}
	require.Nil(t, Accessor{}.TeeRequestBody(r, nil).GetBody)
}

func TestTeeResponseBodyWithoutBody(t *testing.T) {
	require.Nil(t, Accessor{}.TeeResponseBody(nil, nil))
	for name, r := range map[string]*http.Response{
		"nil": {}, "NoBody": {Body: http.NoBody}, "204": {StatusCode: 204, Body: io.NopCloser(nil)},
		"HEAD": {Request: &http.Request{Method: http.MethodHead}, Body: io.NopCloser(nil)},
	} {
		body := r.Body
		require.Equal(t, body, Accessor{}.TeeResponseBody(r, nil).Body, name)
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
			got := Accessor{}.TeeResponseBody(r, c.read)
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
			rsp, err := transport.RoundTrip(Accessor{}.TeeRequestBody(req, asked.read))
			require.NoError(t, err)
			rsp = Accessor{}.TeeResponseBody(rsp, answered.read)
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
	out := Accessor{}.TeeRequestBody(req, c.read)
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
