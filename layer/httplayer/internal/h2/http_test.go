package h2

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// flusher flushes after each Write.
type flusher struct{ w http.ResponseWriter }

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

// handler has all that the tests ask for.
func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Length", fmt.Sprint(r.ContentLength))
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		sum := sha256.New()
		_, err := io.Copy(io.MultiWriter(flusher{w}, sum), r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("X-Sum", fmt.Sprintf("%x", sum.Sum(nil)))
		w.Header().Set(http.TrailerPrefix+"X-Request-Trailer", r.Trailer.Get("X-Request-Trailer"))
	})
	mux.HandleFunc("/length", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = io.WriteString(w, "12345")
	})
	mux.HandleFunc("/short", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.RequestURI)
	})
	mux.HandleFunc("/invalid", func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Bad Name"], w.Header()["X-Bad"], w.Header()["X-Good"] = []string{"1"}, []string{"a\r\nb"}, []string{"1"}
		w.Header()["Date"] = nil // suppresses the field, as in net/http
	})
	mux.HandleFunc("/204", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(204)
	})
	mux.HandleFunc("/304", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304) })
	mux.HandleFunc("/early", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "early") })
	mux.HandleFunc("/abort", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "part")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a>")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.WriteHeader(200)
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/big", func(w http.ResponseWriter, r *http.Request) {
		b := make([]byte, 32<<10)
		size := 4 << 20
		if r.URL.RawQuery == "huge" {
			size = 100 << 20
		}
		for range size / len(b) {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/header", func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Seen"] = r.Header["X-Multi"]
		w.Header().Set("X-Big", strings.Repeat("b", 40<<10))
		_, _ = fmt.Fprint(w, len(r.Header.Get("X-Big")), r.Host)
	})
	return mux
}

// paths runs f with a client and a server on each side of the engine: its own
// client, its own server, and its proxy between those of net/http.
func paths(t *testing.T, f func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string)) {
	t.Helper()
	t.Run("client", func(t *testing.T) {
		addr := standard(t, handler())
		f(t, transport{dial(t, addr, &ClientConfig{})}.RoundTrip, addr)
	})
	t.Run("server", func(t *testing.T) {
		f(t, clearText(t).Do, serve(t, message.ServerConfig{Exchange: handledBy(handler())}).addr)
	})
	t.Run("both", func(t *testing.T) {
		addr := serve(t, message.ServerConfig{Exchange: handledBy(handler())}).addr
		f(t, transport{dial(t, addr, &ClientConfig{})}.RoundTrip, addr)
	})
	t.Run("proxy", func(t *testing.T) {
		s := proxy(t, standard(t, handler()), message.ServerConfig{}, ClientConfig{})
		f(t, clearText(t).Do, s.addr)
	})
	t.Run("small windows", func(t *testing.T) {
		s := proxy(t, standard(t, handler()), message.ServerConfig{StreamWindow: 1, ConnWindow: 1}, ClientConfig{StreamWindow: 1, ConnWindow: 1})
		f(t, clearText(t).Do, s.addr)
	})
}

func TestHTTPResponses(t *testing.T) {
	paths(t, func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string) {
		for _, tt := range []struct {
			method, path string
			status       int
			body         string
			length       int64
		}{
			{"GET", "/length", 200, "12345", 5},
			{"HEAD", "/length", 200, "", 5},
			{"GET", "/short?a=b%20c&x", 200, "/short?a=b%20c&x", 16},
			{"GET", "/short?", 200, "/short?", 7},
			{"POST", "/short", 200, "/short", 6},
			{"GET", "/204", 204, "", 0},
			{"GET", "/304", 304, "", 0},
			{"GET", "/none", 404, "404 page not found\n", 19},
		} {
			rsp, err := do(request(t, tt.method, addr, tt.path, nil))
			require.NoError(t, err, tt.path)
			assert.Equal(t, tt.status, rsp.StatusCode, tt.path)
			assert.Equal(t, tt.body, read(t, rsp), tt.path)
			if tt.status == 200 {
				assert.Equal(t, tt.length, rsp.ContentLength, tt.path)
				assert.NotEmpty(t, rsp.Header.Get("Date"))
			}
		}
	})
}

// A 204 must not have a content-length (RFC 9110, section 8.6).
func TestServerNoContent(t *testing.T) {
	addr := serve(t, message.ServerConfig{Exchange: handledBy(handler())}).addr
	rsp, err := transport{dial(t, addr, &ClientConfig{})}.RoundTrip(request(t, "GET", addr, "/204", nil))
	require.NoError(t, err)
	assert.Empty(t, rsp.Header["Content-Length"])
	assert.Empty(t, read(t, rsp))
}

func TestServerInvalidResponseFields(t *testing.T) {
	addr := serve(t, message.ServerConfig{Exchange: handledBy(handler())}).addr
	rsp, err := transport{dial(t, addr, &ClientConfig{})}.RoundTrip(request(t, "GET", addr, "/invalid", nil))
	require.NoError(t, err)
	assert.Equal(t, []string{"1"}, rsp.Header["X-Good"])
	assert.NotContains(t, rsp.Header, "X-Bad")
	assert.NotContains(t, rsp.Header, "Date")
	assert.Empty(t, read(t, rsp))
}

func TestHTTPEcho(t *testing.T) {
	paths(t, func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string) {
		for _, size := range []int{0, 1, 2048, 16384, 100000, 1 << 20, 5 << 20} {
			b := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{}).Read(b)
			req := request(t, "POST", addr, "/echo", struct{ io.Reader }{bytes.NewReader(b)})
			req.Trailer = http.Header{"X-Request-Trailer": {"rt"}}
			rsp, err := do(req)
			require.NoError(t, err)
			assert.Equal(t, "-1", rsp.Header.Get("X-Length"))
			assert.Contains(t, rsp.Trailer, "X-Sum")
			got := read(t, rsp)
			require.True(t, bytes.Equal(b, []byte(got)), "%d bytes of %d", len(got), size)
			assert.Equal(t, fmt.Sprintf("%x", sha256.Sum256(b)), rsp.Trailer.Get("X-Sum"))
			assert.Equal(t, "rt", rsp.Trailer.Get("X-Request-Trailer"))

			rsp, err = do(request(t, "PUT", addr, "/echo", bytes.NewReader(b)))
			require.NoError(t, err)
			assert.Equal(t, fmt.Sprint(size), rsp.Header.Get("X-Length"))
			require.True(t, bytes.Equal(b, []byte(read(t, rsp))))
		}
	})
}

func TestHTTPEchoConcurrent(t *testing.T) {
	paths(t, func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string) {
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				b := bytes.Repeat([]byte{byte(i)}, 300<<10) // more than the window of a stream
				rsp, err := do(request(t, "POST", addr, "/echo", bytes.NewReader(b)))
				if !assert.NoError(t, err) {
					return
				}
				got, err := io.ReadAll(rsp.Body)
				assert.NoError(t, err)
				assert.True(t, bytes.Equal(b, got))
				assert.NoError(t, rsp.Body.Close())
			})
		}
		wg.Wait()
	})
}

func TestHTTPFullDuplex(t *testing.T) {
	paths(t, func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string) {
		r, w := io.Pipe()
		rsp, err := do(request(t, "POST", addr, "/echo", r))
		require.NoError(t, err)
		for i := range 20 {
			text := strings.Repeat("x", i*100+1)
			_, err := io.WriteString(w, text)
			require.NoError(t, err)
			got := make([]byte, len(text))
			_, err = io.ReadFull(rsp.Body, got)
			require.NoError(t, err)
			require.Equal(t, text, string(got))
			if f := rsp.Request; f != nil && i == 0 {
				assert.Equal(t, 200, rsp.StatusCode)
			}
		}
		require.NoError(t, w.Close())
		assert.Empty(t, read(t, rsp))
		assert.NotEmpty(t, rsp.Trailer.Get("X-Sum"))
	})
}

func TestHTTPEarlyResponse(t *testing.T) {
	paths(t, func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string) {
		for range 5 {
			r, w := io.Pipe()
			written := make(chan error, 1)
			go func() {
				for {
					if _, err := w.Write(make([]byte, 10000)); err != nil {
						written <- err
						return
					}
				}
			}()
			rsp, err := do(request(t, "POST", addr, "/early", r))
			require.NoError(t, err)
			assert.Equal(t, "early", read(t, rsp))
			select {
			case <-written: // the body was closed
			case <-time.After(testTimeout):
				t.Fatal("the request body was not closed")
			}
		}
		rsp, err := do(request(t, "GET", addr, "/length", nil))
		require.NoError(t, err)
		assert.Equal(t, "12345", read(t, rsp))
	})
}

func TestHTTPAbortedResponse(t *testing.T) {
	paths(t, func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string) {
		rsp, err := do(request(t, "GET", addr, "/abort", nil))
		require.NoError(t, err)
		got, err := io.ReadAll(rsp.Body)
		require.Error(t, err)
		assert.Equal(t, "part", string(got))
		_ = rsp.Body.Close()
	})
}

func TestHTTPEarlyHints(t *testing.T) {
	paths(t, func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string) {
		req := request(t, "GET", addr, "/hints", nil)
		var seen []string
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
				seen = append(seen, fmt.Sprint(code, header.Get("Link")))
				return nil
			},
		}))
		rsp, err := do(req)
		require.NoError(t, err)
		assert.Equal(t, []string{"103</a>", "103</a>"}, seen)
		assert.Empty(t, rsp.Header.Get("Link"))
		assert.Empty(t, read(t, rsp))
	})
}

func TestHTTPExpectContinue(t *testing.T) {
	paths(t, func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string) {
		req := request(t, "POST", addr, "/echo", strings.NewReader("body"))
		req.Header.Set("Expect", "100-continue")
		rsp, err := do(req)
		require.NoError(t, err)
		assert.Equal(t, "body", read(t, rsp))

		req = request(t, "POST", addr, "/early", strings.NewReader("body"))
		req.Header.Set("Expect", "100-continue")
		rsp, err = do(req)
		require.NoError(t, err)
		assert.Equal(t, "early", read(t, rsp))
	})
}

func TestHTTPLargeHeaders(t *testing.T) {
	paths(t, func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string) {
		for range 3 {
			req := request(t, "GET", addr, "/header", nil)
			req.Host = "host.test"
			req.Header.Set("X-Big", strings.Repeat("a", 30<<10))
			req.Header["X-Multi"] = []string{"1", "", "2"}
			rsp, err := do(req)
			require.NoError(t, err)
			assert.Equal(t, "30720host.test", read(t, rsp))
			assert.Equal(t, []string{"1", "", "2"}, rsp.Header["X-Seen"])
			assert.Len(t, rsp.Header.Get("X-Big"), 40<<10)
		}
	})
}

func TestHTTPCancel(t *testing.T) {
	t.Parallel()
	paths(t, func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string) {
		req := request(t, "GET", addr, "/hang", nil)
		ctx, cancel := context.WithCancel(req.Context())
		time.AfterFunc(30*time.Millisecond, cancel)
		_, err := do(req.WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)

		req = request(t, "GET", addr, "/big?huge", nil)
		ctx, cancel = context.WithCancel(req.Context())
		rsp, err := do(req.WithContext(ctx))
		require.NoError(t, err)
		cancel()
		_, err = io.Copy(io.Discard, rsp.Body)
		require.ErrorIs(t, err, context.Canceled)
		_ = rsp.Body.Close()
	})
}

func TestHTTPUnreadBodies(t *testing.T) {
	t.Parallel()
	paths(t, func(t *testing.T, do func(*http.Request) (*http.Response, error), addr string) {
		for range 40 { // more than the window of the connection of the engine
			rsp, err := do(request(t, "GET", addr, "/big", nil))
			require.NoError(t, err)
			defer rsp.Body.Close()
		}
		if strings.Contains(t.Name(), "server") {
			return // net/http's client has one window for all
		}
		rsp, err := do(request(t, "GET", addr, "/length", nil))
		require.NoError(t, err)
		assert.Equal(t, "12345", read(t, rsp))
	})
}

func TestClientSlots(t *testing.T) {
	addr := standard(t, handler())
	c := dial(t, addr, &ClientConfig{})
	<-c.Settled()
	for range 50 {
		rsp, err := transport{c}.RoundTrip(request(t, "GET", addr, "/big", nil))
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		rsp, err = transport{c}.RoundTrip(request(t, "POST", addr, "/echo", strings.NewReader("x")))
		require.NoError(t, err)
		assert.Equal(t, "x", read(t, rsp))
	}
	assert.Zero(t, c.Active())
	assert.True(t, c.Usable())
	_, err := transport{c}.RoundTrip(&http.Request{Method: "BAD METHOD", URL: mustParse("http://a/")})
	_, bad := errors.AsType[*message.RequestError](err)
	assert.True(t, bad, "%v", err)
	assert.Zero(t, c.Active())
}

// The trailers are stored once, because the caller may change them after the end of the body.
func TestTrailersAreStoredOnce(t *testing.T) {
	readTwice := func(body io.Reader, trailer *http.Header) (after http.Header, err error) {
		if _, err := io.Copy(io.Discard, body); err != nil {
			return nil, err
		}
		if trailer.Get("X-Sum") != "1" {
			return nil, fmt.Errorf("trailers %v", *trailer)
		}
		trailer.Del("X-Sum")
		_, err = body.Read(make([]byte, 1))
		return *trailer, err
	}
	s := serve(t, message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		after, err := readTwice(r.Body, &r.Trailer)
		_, _ = fmt.Fprint(w, after, err)
		w.Header().Set("X-Sum", "1")
	})})
	req := request(t, http.MethodPost, s.addr, "/", io.NopCloser(strings.NewReader("abc")))
	req.Trailer = http.Header{"X-Sum": {"1"}}
	rsp, err := transport{dial(t, s.addr, &ClientConfig{})}.RoundTrip(req)
	require.NoError(t, err)
	var body bytes.Buffer
	after, err := readTwice(io.TeeReader(rsp.Body, &body), &rsp.Trailer)
	assert.Equal(t, io.EOF, err)
	assert.Empty(t, after)
	assert.Equal(t, "map[] EOF", body.String())
	require.NoError(t, rsp.Body.Close())
}
