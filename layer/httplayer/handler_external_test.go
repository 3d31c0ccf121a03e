package httplayer_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// early answers without a look at the body.
func early(text string, length int64) httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: http.StatusRequestEntityTooLarge, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader(text)), ContentLength: length, Request: req,
		}, nil
	})
}

// An unread body does not break the connection. The next request is served, or the
// connection is closed, and the server does not panic.
func TestHandlerUnreadBody(t *testing.T) {
	t.Parallel()
	refuses := layer.NewStack[*http.Request, *http.Response]().RateLimit(1e-9, 1).Service(early("", 0))
	for name, tt := range map[string]struct {
		svc  httplayer.Service
		size int
		kept bool // the connection
	}{
		"refused":                    {refuses, 10, true},
		"answered early":             {early("too large", 9), 10, true},
		"answered early, in chunks":  {early("too large", -1), 10, true},
		"answered early, and large":  {early("too large", 9), 1 << 20, false},
		"answered early, no content": {early("", 0), 10, true},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", served(t, tt.svc))
			require.NoError(t, err)
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for i := range 5 {
				_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: %d\r\n\r\n%s", tt.size, strings.Repeat("x", tt.size))
				if err != nil && !tt.kept {
					break
				}
				require.NoError(t, err)
				rsp, err := http.ReadResponse(answers, nil)
				if err != nil && i > 0 && !tt.kept {
					break
				}
				require.NoError(t, err, "request %d", i)
				_, err = io.Copy(io.Discard, rsp.Body)
				require.NoError(t, err)
				require.GreaterOrEqual(t, rsp.StatusCode, 400)
			}
		})
	}
}

// The connection of a client that has its response and does not continue its body is
// closed.
func TestHandlerStalledBody(t *testing.T) {
	t.Parallel()
	conn, err := net.Dial("tcp", served(t, early("too large", 9), shortIdle))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 1000\r\n\r\nonly this")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	text, err := io.ReadAll(conn)
	require.NoError(t, err, "the server closes")
	require.Contains(t, string(text), "too large")
}

// An observer and a Report have the final status of each response, and the scheme is set before both.
func TestObserverSeesFinalResponse(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		status int
	}{
		"response": {nil, 204},
		"no route": {layer.ErrNoRoute, 404},
		"rejected": {layer.ErrNotReady, 503},
		"own":      {&httplayer.StatusError{Code: 401}, 401},
		"other":    {errors.New("odd"), 500},
	} {
		t.Run(name, func(t *testing.T) {
			svc := layer.Func[*http.Request, *http.Response](func(_ context.Context, r *http.Request) (*http.Response, error) {
				if tt.err != nil {
					return nil, tt.err
				}
				return &http.Response{StatusCode: 204, Header: make(http.Header), Request: r}, nil
			})
			var seen, reported int
			h := httplayer.Handler(svc, httplayer.WithLogger(nil), httplayer.WithScheme("https"),
				httplayer.WithObserver(func(next httplayer.Service) httplayer.Service {
					return layer.Func[*http.Request, *http.Response](func(ctx context.Context, r *http.Request) (*http.Response, error) {
						require.Equal(t, "https", r.URL.Scheme)
						rsp, err := next.Call(ctx, r)
						require.NoError(t, err)
						seen = rsp.StatusCode
						return rsp, nil
					})
				}),
				httplayer.WithOnResponse(func(x *httplayer.Report) {
					reported = x.Status
					require.Equal(t, tt.err, x.Facts.Err)
					require.NoError(t, x.Err)
				}))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			require.Equal(t, tt.status, w.Code)
			require.Equal(t, tt.status, seen)
			require.Equal(t, tt.status, reported)
		})
	}
}

// hasty reads some of the body, and then answers with the path: in chunks, or
// with a length.
func hasty(some int64, chunked bool) httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
		if req.Body != nil {
			_, _ = io.CopyN(io.Discard, req.Body, some)
		}
		text := req.URL.Path
		rsp := &http.Response{
			StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader(text)), ContentLength: -1, Request: req,
		}
		if !chunked {
			rsp.ContentLength = int64(len(text))
			rsp.Header.Set("Content-Length", strconv.Itoa(len(text)))
		}
		return rsp, nil
	})
}

// served runs a Server for svc until the test ends.
func served(t *testing.T, svc httplayer.Service, opts ...httplayer.ServerOption) (addr string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- tcplayer.Serve(ctx, l, httplayer.NewServer(svc, opts...)) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return l.Addr().String()
}

// exchanged sends text on a new connection, and returns the responses until the server closes it.
func exchanged(t *testing.T, svc httplayer.Service, text string, opts ...httplayer.ServerOption) (answers []string) {
	t.Helper()
	conn, err := net.Dial("tcp", served(t, svc, opts...))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.WriteString(conn, text) // which the server may not let end
	}()
	in := bufio.NewReader(conn)
	for {
		rsp, err := http.ReadResponse(in, nil)
		if err != nil {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server closes")
			break
		}
		if rsp.StatusCode == http.StatusContinue {
			continue
		}
		body, err := io.ReadAll(rsp.Body)
		if err != nil {
			body = append(body, " broken off"...)
		}
		answers = append(answers, string(body))
	}
	conn.Close()
	<-sent
	return answers
}

// shortIdle is the longest pause in the body of a request.
var shortIdle = httplayer.WithMinBodyRate(time.Second, 0)

const last = "GET /next HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n"

// The rest of an unread body is never parsed as a request, and the whole response arrives.
func TestHandlerUnreadBodyRest(t *testing.T) {
	t.Parallel()
	post := func(version, fields, body string) string {
		return "POST /first HTTP/" + version + "\r\nHost: web\r\n" + fields + "\r\n\r\n" + body + last
	}
	chunks := func(size int, trailer string) string {
		return post("1.1", "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n0\r\n%s\r\n", size, strings.Repeat("x", size), trailer))
	}
	sized := func(size int) string {
		return post("1.1", "Content-Length: "+strconv.Itoa(size), strings.Repeat("x", size))
	}
	const most = 256 << 10 // what the server reads
	smuggled := "GET /smuggled HTTP/1.1\r\nHost: web\r\nX: " + strings.Repeat("x", 8<<10) + "\r\n"
	for name, tt := range map[string]struct {
		text string
		kept bool
	}{
		"trailer":               {chunks(3, "X: 1\r\n"), true},
		"bad trailer":           {chunks(3, "no trailer\r\n"+last), false},
		"trailer that is long":  {chunks(3, smuggled), false},
		"bad chunk":             {post("1.1", "Transfer-Encoding: chunked", "3\r\nabcd\r\n"), false},
		"expects 100, 1.1":      {post("1.1", "Expect: 100-continue\r\nContent-Length: 10", "0123456789"), false},
		"expects 100, 1.0":      {post("1.0", "Connection: keep-alive\r\nExpect: 100-continue\r\nContent-Length: 10", "0123456789"), false},
		"just short enough":     {sized(most), true},
		"too long":              {sized(most + 64<<10), false},
		"chunks, short enough":  {chunks(most-1, ""), true},
		"chunks, too long":      {chunks(most+64<<10, ""), false},
		"does not come to that": {"POST /first HTTP/1.1\r\nHost: web\r\nContent-Length: 1000\r\n\r\nonly this", false},
	} {
		for some, chunked := range map[int64]bool{0: true, 5: false} { // some of the body was read before
			t.Run(fmt.Sprint(name, " ", some), func(t *testing.T) {
				t.Parallel()
				want := []string{"/first"}
				if tt.kept || some > 0 && strings.HasPrefix(name, "expects") { // the client was asked for the body
					want = append(want, "/next")
				}
				require.Equal(t, want, exchanged(t, hasty(some, chunked), tt.text, shortIdle))
			})
		}
	}
}

// torn is a response body that ends with an error.
type torn struct{ io.Reader }

func (torn) Close() error { return nil }

func (b torn) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// A response whose body fails is aborted at once, even if the client pauses its request body.
func TestHandlerResponseAbortedDuringRequest(t *testing.T) {
	t.Parallel()
	for _, reads := range []bool{false, true} {
		svc := layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
			if reads {
				go func() { _, _ = io.Copy(io.Discard, req.Body) }() // as an endpoint does
			}
			return &http.Response{
				StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
				Body: torn{strings.NewReader("some")}, ContentLength: -1, Request: req,
			}, nil
		})
		began := time.Now()
		text := "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 1000\r\n\r\nonly this"
		require.Equal(t, []string{"some broken off"}, exchanged(t, svc, text))
		require.Less(t, time.Since(began), 10*time.Second)
	}
}

// An early response does not wait for the rest of the request body, even if a wrapper hides the
// deadlines of the writer.
func TestHandlerEarlyResponseWithoutDeadlines(t *testing.T) {
	t.Parallel()
	reads := make(chan struct{}, 10)
	h := httplayer.Handler(layer.Func[*http.Request, *http.Response](func(ctx context.Context, req *http.Request) (*http.Response, error) {
		go func() { _, _ = io.Copy(io.Discard, req.Body) }() // as an endpoint does
		<-reads
		<-reads // the second Read waits for the client
		return early("early", 5).Call(ctx, req)
	}))
	hides := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = announcing{r.Body, reads}
		h.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
	})
	text := "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 1000\r\n\r\nonly this"
	require.Equal(t, []string{"early"}, exchanged(t, httplayer.FromHandler(hides), text, httplayer.WithMinBodyRate(0, 0)))
}

// announcing is a body that announces each Read.
type announcing struct {
	io.ReadCloser
	reads chan<- struct{}
}

func (b announcing) Read(p []byte) (int, error) {
	b.reads <- struct{}{}
	return b.ReadCloser.Read(p)
}
