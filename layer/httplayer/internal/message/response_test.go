package message

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recordedStream records the calls as lines.
type recordedStream struct {
	calls  []string
	body   bytes.Buffer
	fails  error
	hijack bool
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

func (s *recordedStream) Respond(rsp *http.Response) error {
	return s.add("respond %d", rsp.StatusCode)
}

func (s *recordedStream) WriteHeader(status int, h http.Header, length int64, end bool) error {
	return s.add("header %d %d %v%s", status, length, end, fieldsOf(h))
}

func (s *recordedStream) Write(p []byte) (int, error) {
	s.body.Write(p)
	return len(p), s.add("write %d", len(p))
}

func (s *recordedStream) Finish(trailer http.Header) error {
	return s.add("finish%s", fieldsOf(trailer))
}
func (s *recordedStream) Flush() error { return s.add("flush") }

func (s *recordedStream) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if s.hijack {
		return nil, nil, nil
	}
	return nil, nil, http.ErrNotSupported
}
func (*recordedStream) SetReadDeadline(time.Time) error  { return nil }
func (*recordedStream) SetWriteDeadline(time.Time) error { return nil }

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
			calls:   []string{"header 200 0 true", "finish"},
		},
		"short body": {
			handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "he"); w.Write([]byte("llo")) },
			calls:   []string{"header 200 5 false Content-Type=text/plain; charset=utf-8", "write 5", "finish"},
		},
		"long body": {
			handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "a"); io.WriteString(w, long) },
			calls: []string{
				"header 200 -1 false Content-Type=text/plain; charset=utf-8", "write 1", "write 4097", "finish",
			},
		},
		"flushed": {
			handler: func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); io.WriteString(w, "a") },
			calls:   []string{"header 200 -1 false", "flush", "write 1", "finish"},
		},
		"own type, encoding and length": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "1")
				w.Header()["Content-Type"] = nil
				w.WriteHeader(http.StatusTeapot)
				w.WriteHeader(http.StatusOK)
				io.WriteString(w, "a")
			},
			calls: []string{"header 418 1 false Content-Length=1 Content-Type=", "write 1", "finish"},
		},
		"headers changed after WriteHeader": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("A", "1")
				w.WriteHeader(http.StatusOK)
				w.Header().Set("A", "2")
			},
			calls: []string{"header 200 0 true A=1", "finish"},
		},
		"too much": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "1")
				_, err := io.WriteString(w, "ab")
				assert.Equal(t, http.ErrContentLength, err)
			},
			calls: []string{"header 200 1 false Content-Length=1", "flush"},
			err:   errShortBody,
		},
		"no content": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusNoContent)
				_, err := io.WriteString(w, "a")
				assert.Equal(t, http.ErrBodyNotAllowed, err)
			},
			calls: []string{"header 204 -1 true", "finish"},
		},
		"HEAD": {
			method:  http.MethodHead,
			handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") },
			calls:   []string{"header 200 5 true Content-Type=text/plain; charset=utf-8", "finish"},
		},
		"HEAD with a long body": {
			method:  http.MethodHead,
			handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, long); io.WriteString(w, long) },
			calls:   []string{"header 200 -1 true Content-Type=text/plain; charset=utf-8", "finish"},
		},
		"informational": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Link", "x")
				w.WriteHeader(http.StatusEarlyHints)
				w.Header().Del("Link")
				w.WriteHeader(http.StatusNotFound)
			},
			calls: []string{"inform 103 Link=x", "header 404 0 true", "finish"},
		},
		"trailers": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "a, Content-Length")
				w.Header().Set(http.TrailerPrefix+"B", "2")
				w.WriteHeader(http.StatusOK)
				w.Header().Set("A", "1")
				w.Header().Set(http.TrailerPrefix+"C", "3")
			},
			calls: []string{"header 200 -1 false Trailer=a, Content-Length Trailer:B=2", "finish A=1 B=2 C=3"},
		},
		"trailers added after Flush": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(http.TrailerPrefix+"A", "1")
				w.(http.Flusher).Flush()
				w.Header().Add(http.TrailerPrefix+"A", "2")
			},
			calls: []string{"header 200 -1 false Trailer:A=1", "flush", "finish A=1|2"},
		},
		"length suppressed": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Length"] = nil
				io.WriteString(w, "a")
			},
			calls: []string{"header 200 -1 false Content-Length= Content-Type=text/plain; charset=utf-8", "write 1", "finish"},
		},
		"length suppressed, no body": { // as of a gRPC error, which HTTP/2 must end with the headers
			handler: func(w http.ResponseWriter, _ *http.Request) { w.Header()["Content-Length"] = nil },
			calls:   []string{"header 200 -1 true Content-Length=", "finish"},
		},
		"late trailers": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusOK)
				w.Header().Set(http.TrailerPrefix+"Grpc-Status", "5")
			},
			calls: []string{"header 200 -1 false", "finish Grpc-Status=5"},
		},
		"flushed, with a length of 0 and late trailers": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "0")
				w.(http.Flusher).Flush()
				w.Header().Set(http.TrailerPrefix+"Grpc-Status", "5")
			},
			calls: []string{"header 200 0 false Content-Length=0", "flush", "finish Grpc-Status=5"},
		},
		"copied": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				n, err := io.Copy(w, io.MultiReader(strings.NewReader(long), strings.NewReader("b")))
				assert.NoError(t, err)
				assert.Equal(t, int64(len(long)+1), n)
			},
			calls: []string{"header 200 -1 false Content-Type=text/plain; charset=utf-8", "write 4097", "write 1", "finish"},
		},
		"panic": {
			handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "a"); panic(http.ErrAbortHandler) },
			err:     http.ErrAbortHandler,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(recordedStream)
			hijacked, err := Serve(handled(tt.handler), s, &http.Request{Method: tt.method})
			assert.False(t, hijacked)
			assert.Equal(t, tt.err, err)
			assert.Equal(t, tt.calls, s.calls)
		})
	}
}

// handled returns the configuration of a server with the handler h.
func handled(h http.HandlerFunc) *ServerConfig {
	return &ServerConfig{Handler: h, Log: slog.New(slog.DiscardHandler)}
}

func TestServeExchange(t *testing.T) {
	gone := errors.New("gone")
	for name, tt := range map[string]struct {
		rsp   *http.Response
		fails error
		calls []string
		err   error
	}{
		"response": {rsp: &http.Response{StatusCode: 201}, calls: []string{"respond 201"}},
		"error":    {fails: gone, err: gone},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(recordedStream)
			cfg := &ServerConfig{Exchange: func(*http.Request) (*http.Response, error) { return tt.rsp, tt.fails }}
			hijacked, err := Serve(cfg, s, new(http.Request))
			assert.False(t, hijacked)
			assert.Equal(t, tt.err, err)
			assert.Equal(t, tt.calls, s.calls)
		})
	}
}

func TestServeLogsPanics(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	cfg := handled(func(http.ResponseWriter, *http.Request) { panic("odd") })
	cfg.Log = log
	_, err := Serve(cfg, new(recordedStream), &http.Request{RemoteAddr: "1.2.3.4:5"})
	require.ErrorContains(t, err, "odd")
	assert.Contains(t, out.String(), "odd")
	assert.Contains(t, out.String(), "remote=1.2.3.4:5")
}

func TestResponseWriterHijack(t *testing.T) {
	var kept http.ResponseWriter
	hijacked, err := Serve(handled(func(w http.ResponseWriter, _ *http.Request) {
		_, _, err := http.NewResponseController(w).Hijack()
		assert.NoError(t, err)
		_, err = io.WriteString(w, "a")
		assert.Equal(t, http.ErrHijacked, err)
		kept = w
	}), &recordedStream{hijack: true}, new(http.Request))
	require.NoError(t, err)
	assert.True(t, hijacked)
	_, err = io.WriteString(kept, "a")
	assert.Error(t, err)
}

func TestResponseWriterFailure(t *testing.T) {
	gone := errors.New("gone")
	s := &recordedStream{fails: gone}
	_, err := Serve(handled(func(w http.ResponseWriter, _ *http.Request) {
		assert.Equal(t, gone, http.NewResponseController(w).Flush())
		_, err := io.WriteString(w, "a")
		assert.Equal(t, gone, err)
	}), s, new(http.Request))
	assert.Equal(t, gone, err)
	assert.Len(t, s.calls, 1)
}
