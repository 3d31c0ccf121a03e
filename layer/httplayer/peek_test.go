package httplayer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// script answers with pieces of a body, each flushed, and trailers.
func script(code string, pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		flush(w)
		for _, p := range pieces {
			say(w, p)
			flush(w)
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", code)
	}
}

// headOf sends a request by HTTP/2 and returns the head of the response.
func headOf(t *testing.T, h http.Handler) *http.Response {
	t.Helper()
	req := request(t, http.MethodPost, "http://web/", "")
	req.ProtoMajor = 2
	rsp, err := endpoint(t, serve(t, h), WithHTTP2()).Call(t.Context(), req)
	require.NoError(t, err)
	return rsp
}

func TestPeek(t *testing.T) {
	long := strings.Repeat("x", 9<<10)
	for name, pieces := range map[string][]string{
		"trailers first": nil, "after a frame": {"hello"}, "after a long frame": {long}, "after two frames": {"hello", "world"},
	} {
		t.Run(name, func(t *testing.T) {
			rsp := headOf(t, script("14", pieces...))
			ahead, whole := Replayer{}.Peek(t.Context(), rsp)
			require.NotSame(t, rsp, ahead)
			assert.Empty(t, ahead.Trailer, "they come with the end of the body")
			if whole { // net/http may have been too slow
				assert.Equal(t, "14", rsp.Trailer.Get("Grpc-Status"))
			}
			assert.Equal(t, strings.Join(pieces, ""), read(t, ahead))
			assert.Equal(t, "14", ahead.Trailer.Get("Grpc-Status"))
			assert.Equal(t, rsp.Header, ahead.Header)
			ahead.Header.Set("X-Mine", "1")
			assert.NotContains(t, rsp.Header, "X-Mine", "others may be reading it")
			_, err := ahead.Body.Read(make([]byte, 1))
			require.Error(t, err, "read after Close")
		})
	}
}

// A response that cannot have trailers soon is returned unchanged.
func TestPeekUnchangedResponses(t *testing.T) {
	body := io.NopCloser(strings.NewReader("x"))
	for name, tt := range map[string]struct {
		rsp   *http.Response
		whole bool
	}{
		"nothing":     {nil, true},
		"no body":     {&http.Response{ProtoMajor: 2, Body: http.NoBody}, true},
		"no content":  {&http.Response{ProtoMajor: 2, StatusCode: 204, Body: body}, true},
		"HTTP/1.1":    {&http.Response{ProtoMajor: 1, ContentLength: -1, Body: body}, false},
		"a long body": {&http.Response{ProtoMajor: 2, ContentLength: 1 << 20, Body: body}, false},
		"ended at once": {&http.Response{
			ProtoMajor: 2, Body: body, Request: &http.Request{Method: http.MethodHead},
		}, true},
	} {
		ahead, whole := Replayer{}.Peek(t.Context(), tt.rsp)
		assert.Same(t, tt.rsp, ahead, name)
		assert.Equal(t, tt.whole, whole, name)
	}
}

// slowBody returns a piece each time the test releases one.
type slowBody struct {
	pieces chan string
	over   chan struct{} // closed: end is next
	closed chan struct{}
	shut   bool
	end    error
}

func newSlowBody() *slowBody {
	return &slowBody{pieces: make(chan string), over: make(chan struct{}), closed: make(chan struct{}), end: io.EOF}
}

func (s *slowBody) Read(p []byte) (int, error) {
	select {
	case <-s.over:
		return 0, s.end
	case piece := <-s.pieces:
		if piece == "panic" {
			panic("odd")
		}
		return copy(p, piece), nil
	case <-s.closed:
		return 0, http.ErrBodyReadAfterClose
	}
}

func (s *slowBody) Close() error {
	if !s.shut {
		s.shut = true
		close(s.closed)
	}
	return nil
}

func (s *slowBody) response() *http.Response {
	return grpcResponse(s)
}

func grpcResponse(body io.ReadCloser) *http.Response {
	return &http.Response{
		ProtoMajor: 2, StatusCode: 200, ContentLength: -1, Body: body,
		Header: http.Header{"Content-Type": {grpcType}}, Trailer: http.Header{"Grpc-Status": nil},
	}
}

// writeLine makes the pieces readable after the given time. Without pieces the body ends.
func (s *slowBody) writeLine(after time.Duration, pieces ...string) {
	go func() {
		time.Sleep(after)
		for _, p := range pieces {
			select {
			case s.pieces <- p:
			case <-s.closed:
				return
			}
		}
		if len(pieces) == 0 {
			close(s.over)
		}
	}()
}

// A stream waits for its first piece without a limit, and for the second one millisecond.
func TestPeekStreamDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body, began := newSlowBody(), time.Now()
		body.writeLine(time.Second, "first")
		ahead, whole := Replayer{}.Peek(t.Context(), body.response())
		require.False(t, whole)
		require.Equal(t, time.Second+time.Millisecond, time.Since(began))
		buf := make([]byte, 3)
		n, err := ahead.Body.Read(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		for _, want := range []string{"fir", "st"} {
			n, err = ahead.Body.Read(buf)
			require.NoError(t, err)
			require.Equal(t, want, string(buf[:n]))
		}
		body.writeLine(time.Second, "second")
		n, err = io.ReadFull(ahead.Body, buf)
		require.NoError(t, err)
		require.Equal(t, "sec", string(buf[:n]))
		body.writeLine(time.Second, "third")
		got := make([]byte, 8)
		_, err = io.ReadFull(ahead.Body, got)
		require.NoError(t, err)
		require.Equal(t, "ondthird", string(got))
		require.Equal(t, []string{"Grpc-Status"}, keys(ahead.Trailer), "as announced")
		body.writeLine(time.Second)
		_, err = ahead.Body.Read(got)
		require.Equal(t, io.EOF, err)
		require.NoError(t, ahead.Body.Close())
	})
}

func keys(h http.Header) (names []string) {
	for name := range h {
		names = append(names, name)
	}
	return names
}

func TestPeekContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		body, began := newSlowBody(), time.Now()
		ahead, whole := Replayer{}.Peek(ctx, body.response())
		require.False(t, whole)
		require.Equal(t, time.Second, time.Since(began))
		require.NoError(t, ahead.Body.Close())
		_, err := ahead.Body.Read(make([]byte, 1))
		require.ErrorIs(t, err, http.ErrBodyReadAfterClose)
	})
}

// Close ends a Read that waits for a piece that is read ahead.
func TestPeekedBodyCloseDuringRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := newSlowBody()
		body.writeLine(0, "first")
		ahead, _ := Replayer{}.Peek(t.Context(), body.response())
		_, err := io.ReadFull(ahead.Body, make([]byte, 5))
		require.NoError(t, err)
		time.AfterFunc(time.Second, func() { ahead.Body.Close() })
		_, err = ahead.Body.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, io.EOF)
	})
}

// A body that ends with an error has the same bytes and the same error.
func TestPeekBrokenBody(t *testing.T) {
	for name, fail := range map[string]func(*slowBody){
		"an error": func(b *slowBody) {
			b.end = errors.New("odd")
			b.writeLine(time.Microsecond)
		},
		"a panic": func(b *slowBody) { b.writeLine(time.Microsecond, "panic") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body := newSlowBody()
				body.writeLine(0, "first")
				fail(body)
				ahead, whole := Replayer{}.Peek(t.Context(), body.response())
				require.False(t, whole)
				got, err := io.ReadAll(ahead.Body)
				require.ErrorContains(t, err, "odd")
				require.Equal(t, "first", string(got))
				_, again := ahead.Body.Read(make([]byte, 1))
				require.Equal(t, err, again)
				require.NoError(t, ahead.Body.Close())
			})
		})
	}
}

// Reading ahead does not change the body.
func TestPeekKeepsBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, size := range []int{1, peekSize - 1, peekSize, peekSize + 1, 3 * peekSize, peekMost, peekMost + 1, 5 * peekMost} {
			want := bytes.Repeat([]byte("abcdefg"), size/7+1)[:size]
			rsp := grpcResponse(io.NopCloser(bytes.NewReader(want)))
			ahead, whole := Replayer{}.Peek(t.Context(), rsp)
			got, err := io.ReadAll(ahead.Body)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), "%d", size)
			require.Equal(t, size <= peekMost, whole, "%d", size)
		}
	})
}
