package message

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// recordedStream reads a response and records it as lines.
type recordedStream struct {
	calls []string
	fails error
}

func (s *recordedStream) add(format string, args ...any) error {
	s.calls = append(s.calls, strings.TrimSpace(fmt.Sprintf(format, args...)))
	return s.fails
}

func fieldsOf(h http.Header) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h)) {
		fmt.Fprintf(&b, " %s=%s", name, strings.Join(h[name], "|"))
	}
	return b.String()
}

func (s *recordedStream) Inform(status int, h http.Header) error {
	return s.add("inform %d%s", status, fieldsOf(h))
}

func (s *recordedStream) Respond(rsp *http.Response) (int64, error) {
	defer rsp.Body.Close()
	delete(rsp.Header, "Date")
	if err := s.add("header %d %d%s", rsp.StatusCode, rsp.ContentLength, fieldsOf(rsp.Header)); err != nil {
		return 0, err
	}
	body, err := io.ReadAll(rsp.Body)
	s.add("body %d%s", len(body), fieldsOf(rsp.Trailer))
	return int64(len(body)), err
}

func (*recordedStream) Received() int64 { return 0 }

func TestResponseWriterCalls(t *testing.T) {
	long := strings.Repeat("a", firstSize+1)
	for name, tt := range map[string]struct {
		method  string
		handler http.HandlerFunc
		calls   []string
		err     error
	}{
		"nothing written": {
			handler: func(http.ResponseWriter, *http.Request) {},
			calls:   []string{"header 200 0 Content-Length=0", "body 0"},
		},
		"short body": {
			handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "he"); w.Write([]byte("llo")) },
			calls:   []string{"header 200 5 Content-Length=5 Content-Type=text/plain; charset=utf-8", "body 5"},
		},
		"long body": {
			handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "a"); io.WriteString(w, long) },
			calls: []string{
				"header 200 -1 Content-Type=text/plain; charset=utf-8", "body 4098",
			},
		},
		"flushed": {
			handler: func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); io.WriteString(w, "a") },
			calls:   []string{"header 200 -1", "body 1"},
		},
		"own type, encoding and length": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "1")
				w.Header()["Content-Type"] = nil
				w.WriteHeader(http.StatusTeapot)
				w.WriteHeader(http.StatusOK)
				io.WriteString(w, "a")
			},
			calls: []string{"header 418 1 Content-Length=1 Content-Type=", "body 1"},
		},
		"headers changed after WriteHeader": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("A", "1")
				w.WriteHeader(http.StatusOK)
				w.Header().Set("A", "2")
			},
			calls: []string{"header 200 0 A=1 Content-Length=0", "body 0"},
		},
		"too much": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "1")
				_, err := io.WriteString(w, "ab")
				assert.Equal(t, http.ErrContentLength, err)
			},
			calls: []string{"header 200 1 Content-Length=1", "body 0"},
			err:   ErrShortBody,
		},
		"no content": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusNoContent)
				_, err := io.WriteString(w, "a")
				assert.Equal(t, http.ErrBodyNotAllowed, err)
			},
			calls: []string{"header 204 -1", "body 0"},
		},
		"HEAD": {
			method:  http.MethodHead,
			handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") },
			calls:   []string{"header 200 5 Content-Length=5 Content-Type=text/plain; charset=utf-8", "body 0"},
		},
		"HEAD with a long body": {
			method:  http.MethodHead,
			handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, long); io.WriteString(w, long) },
			calls:   []string{"header 200 -1 Content-Type=text/plain; charset=utf-8", "body 0"},
		},
		"informational": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Link", "x")
				w.WriteHeader(http.StatusEarlyHints)
				w.Header().Del("Link")
				w.WriteHeader(http.StatusNotFound)
			},
			calls: []string{"inform 103 Link=x", "header 404 0 Content-Length=0", "body 0"},
		},
		"trailers": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "a, Content-Length")
				w.Header().Set(http.TrailerPrefix+"B", "2")
				w.WriteHeader(http.StatusOK)
				w.Header().Set("A", "1")
				w.Header().Set(http.TrailerPrefix+"C", "3")
			},
			calls: []string{"header 200 -1", "body 0 A=1 B=2 C=3"},
		},
		"trailers added after Flush": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(http.TrailerPrefix+"A", "1")
				w.(http.Flusher).Flush()
				w.Header().Add(http.TrailerPrefix+"A", "2")
			},
			calls: []string{"header 200 -1", "body 0 A=1|2"},
		},
		"length suppressed": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Length"] = nil
				io.WriteString(w, "a")
			},
			calls: []string{"header 200 -1 Content-Type=text/plain; charset=utf-8", "body 1"},
		},
		"length suppressed, no body": { // as of a gRPC error, which HTTP/2 must end with the headers
			handler: func(w http.ResponseWriter, _ *http.Request) { w.Header()["Content-Length"] = nil },
			calls:   []string{"header 200 -1", "body 0"},
		},
		"late trailers": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusOK)
				w.Header().Set(http.TrailerPrefix+"Grpc-Status", "5")
			},
			calls: []string{"header 200 -1", "body 0 Grpc-Status=5"},
		},
		"flushed, with a length of 0 and late trailers": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "0")
				w.(http.Flusher).Flush()
				w.Header().Set(http.TrailerPrefix+"Grpc-Status", "5")
			},
			calls: []string{"header 200 0 Content-Length=0", "body 0 Grpc-Status=5"},
		},
		"copied": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				n, err := io.Copy(w, io.MultiReader(strings.NewReader(long), strings.NewReader("b")))
				assert.NoError(t, err)
				assert.Equal(t, int64(len(long)+1), n)
			},
			calls: []string{"header 200 -1 Content-Type=text/plain; charset=utf-8", "body 4098"},
		},
		"panic": {
			handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "a"); panic(http.ErrAbortHandler) },
			err:     http.ErrAbortHandler,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(recordedStream)
			req := (&http.Request{Method: tt.method}).WithContext(context.WithValue(t.Context(), InformerKey, s))
			err := serve(handledBy(tt.handler), s, req)
			assert.ErrorIs(t, err, tt.err)
			assert.Equal(t, tt.calls, s.calls)
		})
	}
}

func handlerExchange(h http.Handler) Exchange {
	s := &http.Server{Handler: h}
	return func(req *http.Request) (*http.Response, error) {
		if req.URL == nil {
			req.URL = new(url.URL)
		}
		return Handle(req.Context(), s, req)
	}
}

// serve serves req on s, as a connection with the configuration cfg does.
func serve(cfg *ServerConfig, s *recordedStream, req *http.Request) error {
	_, reported := NewStream[recordedStream](cfg)
	return Serve(cfg, s, req, reported)
}

// handledBy returns the configuration of a server with the handler h.
func handledBy(h http.HandlerFunc) *ServerConfig {
	return &ServerConfig{Exchange: handlerExchange(h), Log: slog.New(slog.DiscardHandler)}
}

func TestServeExchange(t *testing.T) {
	gone := errors.New("gone")
	for name, tt := range map[string]struct {
		rsp   *http.Response
		fails error
		calls []string
		err   error
	}{
		"response": {rsp: &http.Response{StatusCode: 201, Header: http.Header{}}, calls: []string{"header 201 0", "body 0"}},
		"error":    {fails: gone, err: gone},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(recordedStream)
			cfg := &ServerConfig{Exchange: func(*http.Request) (*http.Response, error) { return tt.rsp, tt.fails }}
			assert.Equal(t, tt.err, serve(cfg, s, new(http.Request)))
			assert.Equal(t, tt.calls, s.calls)
		})
	}
}

func TestServeLogsPanics(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"before the response": func(http.ResponseWriter, *http.Request) { panic("odd") },
		"after its headers": func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			panic("odd")
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cfg := handledBy(h)
			cfg.Log = slog.New(slog.NewTextHandler(&out, nil))
			err := serve(cfg, new(recordedStream), &http.Request{RemoteAddr: "1.2.3.4:5"})
			require.ErrorContains(t, err, "odd")
			assert.Contains(t, out.String(), "odd")
			assert.Contains(t, out.String(), "remote=1.2.3.4:5")
			assert.Contains(t, out.String(), "handler_writer_test.go", "the stack is that of the handler")
		})
	}
}

// The connection that a handler gets has the addresses and the methods of a TCP connection. What the
// handler writes on it is the response.
func TestHandleHijack(t *testing.T) {
	for name, tt := range map[string]struct {
		method   string
		response string // that the handler writes
		status   int    // that the handler sets before
		want     string
	}{
		"switched":               {response: "HTTP/1.1 101 Fine\r\nUpgrade: x\r\n\r\n", want: "101 Fine"},
		"informed":               {response: "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 101 Fine\r\n\r\n", want: "101 Fine"},
		"with WriteHeader":       {status: http.StatusSwitchingProtocols, want: "101 Switching Protocols"},
		"CONNECT":                {method: http.MethodConnect, response: "HTTP/1.0 200 OK\r\n\r\n", want: "200 OK"},
		"CONNECT, a WriteHeader": {method: http.MethodConnect, status: http.StatusOK, want: "200 OK"},
	} {
		t.Run(name, func(t *testing.T) {
			h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if tt.status != 0 {
					w.WriteHeader(tt.status)
				}
				conn, rw, err := http.NewResponseController(w).Hijack()
				if !assert.NoError(t, err) {
					return
				}
				defer conn.Close()
				_, err = io.WriteString(w, "a")
				assert.Equal(t, http.ErrHijacked, err)
				assert.Equal(t, "1.2.3.4:5", conn.RemoteAddr().String())
				assert.NoError(t, conn.SetDeadline(time.Now().Add(time.Hour)))
				rw.WriteString(tt.response)
				assert.NoError(t, rw.Flush())
				text, err := io.ReadAll(rw)
				assert.NoError(t, err)
				rw.Write(text)
				rw.Flush()
			})
			rsp, err := handlerExchange(h)(&http.Request{Method: tt.method, RemoteAddr: "1.2.3.4:5"})
			require.NoError(t, err)
			assert.Equal(t, tt.want, rsp.Status)
			body := rsp.Body.(io.ReadWriteCloser)
			_, err = io.WriteString(body, "hello")
			require.NoError(t, err)
			require.NoError(t, CloseWrite(body))
			text, err := io.ReadAll(body)
			require.NoError(t, err)
			assert.Equal(t, "hello", string(text))
			require.NoError(t, body.Close())
		})
	}
}

// A hijacked connection can also have a response without a tunnel, which ends with the connection.
func TestHandleHijackedResponse(t *testing.T) {
	ended := make(chan struct{})
	rsp, err := handlerExchange(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			io.WriteString(conn, "HTTP/1.0 404 Nowhere\r\n\r\nhello")
			conn.Close()
		}
		<-r.Context().Done()
		close(ended)
	}))(new(http.Request))
	require.NoError(t, err)
	assert.Equal(t, "404 Nowhere", rsp.Status)
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(text))
	require.NoError(t, rsp.Body.Close())
	<-ended
}

// Closing the body early ends the handler: its context, its reads and its writes.
func TestHandleClosed(t *testing.T) {
	here, there := io.Pipe()
	defer there.Close()
	ended := make(chan error, 2)
	rsp, err := handlerExchange(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 10<<10))
		}
		_, err := w.Write(make([]byte, 10<<10))
		ended <- err
		_, err = r.Body.Read(make([]byte, 1))
		ended <- err
	}))(&http.Request{Body: here, ContentLength: -1})
	require.NoError(t, err)
	_, err = rsp.Body.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Error(t, <-ended)
	require.Error(t, <-ended)
	_, err = rsp.Body.Read(make([]byte, 1))
	require.Error(t, err)
}

// If the handler has written its whole response, Close waits until it has returned, and its context
// does not end before.
func TestHandleWorksOn(t *testing.T) {
	finish := make(chan struct{})
	returned := false
	rsp, err := handlerExchange(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		io.WriteString(w, "hello")
		w.(http.Flusher).Flush()
		<-finish
		assert.NoError(t, r.Context().Err())
		returned = true
	}))(new(http.Request))
	require.NoError(t, err)
	_, err = io.ReadFull(rsp.Body, make([]byte, 5))
	require.NoError(t, err)
	time.AfterFunc(10*time.Millisecond, func() { close(finish) })
	require.NoError(t, rsp.Body.Close())
	require.True(t, returned)
}

// The end of the context ends a call whose handler has not answered.
func TestHandleCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone, ended := errors.New("gone"), make(chan error, 1)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel(gone)
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
		var err error
		for err == nil { // Write may learn of the end a little later
			_, err = io.WriteString(w, "late")
		}
		ended <- err
	})
	rsp, err := handlerExchange(h)(new(http.Request).WithContext(ctx))
	require.Equal(t, gone, err)
	require.Nil(t, rsp)
	require.Equal(t, gone, <-ended)
	require.Equal(t, gone, <-ended)
}

// A handler that returns because its context has ended does not complete its response, even if it
// learns of the end first.
func TestHandleCutShort(t *testing.T) {
	gone := errors.New("gone")
	for _, begun := range []bool{true, false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		read := make(chan struct{})
		rsp, err := handlerExchange(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// The context calls f before it calls ContextDone.
			r.Context().(interface {
				AfterFunc(f func()) (stop func() bool)
			}).AfterFunc(func() { <-read })
			if begun {
				_ = http.NewResponseController(w).Flush()
			}
			cancel(gone)
			<-r.Context().Done()
			w.WriteHeader(http.StatusTeapot)
		}))(new(http.Request).WithContext(ctx))
		if begun {
			require.NoError(t, err)
			_, err = io.ReadAll(rsp.Body)
			require.NoError(t, rsp.Body.Close())
		}
		close(read)
		require.Equal(t, gone, err)
	}
}

func TestHandleRequest(t *testing.T) {
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/a?b", r.URL.String())
		assert.Equal(t, "/a?b", r.RequestURI)
		assert.Equal(t, "host.test", r.Host)
		assert.Equal(t, http.NoBody, r.Body)
		assert.IsType(t, new(http.Server), r.Context().Value(http.ServerContextKey))
	})
	u, err := url.Parse("http://host.test/a?b")
	require.NoError(t, err)
	rsp, err := handlerExchange(h)(&http.Request{URL: u})
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Equal(t, "http://host.test/a?b", u.String(), "the request is not modified")
}

func TestServeReports(t *testing.T) {
	gone := errors.New("gone")
	left, cancel := context.WithCancelCause(t.Context())
	cancel(new(CanceledError))
	for name, tt := range map[string]struct {
		ctx    context.Context
		rsp    *http.Response
		err    error // of the exchange
		fails  error // of the stream
		status int
		want   error
	}{
		"response":         {rsp: &http.Response{StatusCode: 201}, status: 201},
		"aborted":          {rsp: &http.Response{StatusCode: 201}, fails: gone, status: 201, want: gone},
		"reset":            {err: &ResetError{Code: CodeCancel}, status: 502, want: &ResetError{Code: CodeCancel}},
		"error":            {err: gone, status: 500, want: gone},
		"client left":      {ctx: left, rsp: &http.Response{StatusCode: 201}, status: 499, want: new(CanceledError)},
		"left, no respose": {ctx: left, err: gone, status: 499, want: gone},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := tt.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			var got []*Report
			cfg := &ServerConfig{
				Exchange: func(req *http.Request) (*http.Response, error) {
					layer.RecordFromContext(req.Context()).SetRoute("r")
					return tt.rsp, tt.err
				},
				Ended: func(x *Report) { got = append(got, x) },
			}
			req := new(http.Request).WithContext(ctx)
			_ = serve(cfg, &recordedStream{fails: tt.fails}, req)
			require.Len(t, got, 1)
			require.Equal(t, tt.status, got[0].Status)
			require.Equal(t, tt.want, got[0].Err)
			require.Equal(t, "r", got[0].Facts.Route)
			require.Same(t, req, got[0].Request)
			require.False(t, got[0].Head.Before(got[0].Began) || got[0].Ended.Before(got[0].Head))
		})
	}
}
