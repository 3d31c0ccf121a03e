package httplayer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

func TestReplayIdempotent(t *testing.T) {
	for method, want := range map[string]bool{
		"": true, "GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "PUT": true, "DELETE": true,
		"POST": false, "PATCH": false, "CONNECT": false, "get": false, "LOCK": false,
	} {
		assert.Equal(t, want, HTTP{}.Idempotent(&http.Request{Method: method}), method)
	}
	for _, h := range []http.Header{{"Idempotency-Key": {"1"}}, {"X-Idempotency-Key": {"1"}}, {"Idempotency-Key": nil}} {
		assert.True(t, HTTP{}.Idempotent(&http.Request{Method: "POST", Header: h}), "%v", h)
	}
	assert.False(t, HTTP{}.Idempotent(&http.Request{Method: "POST", ProtoMajor: 2, Header: http.Header{"Content-Type": {"application/grpc"}}}))
}

func TestReplaySentOnce(t *testing.T) {
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		assert.Nil(t, HTTP{}.Replay(&http.Request{Body: body}, 10))
	}
	for name, change := range map[string]func(*http.Request){
		"too long by its own word": func(r *http.Request) { r.ContentLength = 11 },
		"not sent before 100":      func(r *http.Request) { r.Header.Set("Expect", "100-continue") },
		"upgrade":                  func(r *http.Request) { r.Header.Set("Upgrade", "websocket") },
		"upgrade without a body":   func(r *http.Request) { r.Header.Set("Upgrade", "websocket"); r.Body = nil },
		"tunnel":                   func(r *http.Request) { r.Method = http.MethodConnect },
	} {
		req, body := withWatchedBody("hello")
		change(req)
		replay := HTTP{}.Replay(req, 10)
		require.NotNil(t, replay, name)
		_, ok := replay.Next()
		assert.False(t, ok, name)
		replay.End()
		assert.Zero(t, body.reads.Load()+body.closes.Load(), name)
	}
}

func withWatchedBody(text string) (*http.Request, *asked) {
	body := &asked{Reader: strings.NewReader(text)}
	return &http.Request{Method: http.MethodPut, Header: http.Header{}, Body: body, ContentLength: int64(len(text))}, body
}

func TestReplayKeepsBody(t *testing.T) {
	req, body := withWatchedBody("hello")
	before := *req
	replay := HTTP{}.Replay(req, 5)
	for range 3 {
		again, ok := replay.Next()
		require.True(t, ok)
		assert.NotSame(t, req, again)
		assert.EqualValues(t, 5, again.ContentLength, "it is framed as the first one")
		got, err := io.ReadAll(again.Body)
		require.NoError(t, err)
		assert.Equal(t, "hello", string(got))
		assert.NoError(t, again.Body.Close())
	}
	assert.Zero(t, body.closes.Load())
	replay.End()
	assert.EqualValues(t, 1, body.closes.Load())
	assert.Equal(t, before.Body, req.Body, "the request is not changed")

	req, _ = withWatchedBody("hello, world")
	req.ContentLength = -1
	replay = HTTP{}.Replay(req, 5)
	first, ok := replay.Next()
	require.True(t, ok)
	got, err := io.ReadAll(first.Body)
	require.NoError(t, err)
	assert.Equal(t, "hello, world", string(got))
	_, ok = replay.Next()
	assert.False(t, ok, "it turned out longer than the limit")
}

func TestReplayGetBody(t *testing.T) {
	req, body := withWatchedBody(strings.Repeat("x", 1000))
	var got []*asked
	req.GetBody = func() (io.ReadCloser, error) {
		if len(got) == 2 {
			return nil, errors.New("no more")
		}
		got = append(got, &asked{Reader: strings.NewReader("again")})
		return got[len(got)-1], nil
	}
	replay := HTTP{}.Replay(req, 10) // the limit does not apply to GetBody
	first, ok := replay.Next()
	require.True(t, ok)
	assert.Same(t, body, first.Body)
	for i := range 2 {
		again, ok := replay.Next()
		require.True(t, ok)
		assert.Nil(t, again.GetBody, "or http.Transport would send it again by itself")
		assert.Same(t, got[i], again.Body)
	}
	assert.Nil(t, first.GetBody)
	assert.NotNil(t, req.GetBody)
	_, ok = replay.Next()
	assert.False(t, ok)
	replay.End()
	for _, b := range []*asked{body, got[0], got[1]} {
		assert.Zero(t, b.closes.Load(), "the service closes it")
	}
}

func TestReplayDrain(t *testing.T) {
	HTTP{}.Drain(nil)
	HTTP{}.Drain(&http.Response{})
	for name, tt := range map[string]struct {
		length int
		said   int64
		reads  bool
	}{
		"short":                {100, -1, true},
		"short, with a length": {100, 100, true},
		"long, with a length":  {1 << 20, 1 << 20, false},
		"long":                 {1 << 20, -1, true},
	} {
		text := strings.NewReader(strings.Repeat("x", tt.length))
		body := &asked{Reader: text}
		HTTP{}.Drain(&http.Response{StatusCode: 503, Body: body, ContentLength: tt.said, ProtoMajor: 1})
		assert.EqualValues(t, 1, body.closes.Load(), name)
		assert.Equal(t, tt.reads, body.reads.Load() > 0, name)
		if tt.length <= maxDrainLength && tt.reads {
			assert.Zero(t, text.Len(), name)
		} else {
			assert.Greater(t, text.Len(), tt.length-2*maxDrainLength, name)
		}
	}
}

// A response body without data does not delay the retry.
func TestReplayDrainSilentBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		began := time.Now()
		HTTP{}.Drain(&http.Response{StatusCode: 503, Body: r, ContentLength: -1, ProtoMajor: 1})
		assert.Less(t, time.Since(began), 100*time.Millisecond)
		_, err := w.Write([]byte("x"))
		assert.ErrorIs(t, err, io.ErrClosedPipe)
	})
}

// The connection of a discarded response is reused.
func TestReplayDrainKeepsConnection(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		h.srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			flush(w)
			say(w, strings.Repeat("x", 4000))
		})
		e := NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(h.network.DialContext))
		for range 3 {
			rsp, err := e.Call(ctx, request(t, http.MethodGet, "http://web/", ""))
			require.NoError(t, err)
			HTTP{}.Drain(rsp)
			assert.Equal(t, 1, e.Describe().State.Get("idle"))
		}
	})
}

func TestReplayRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
		head := func(fields ...string) http.Header {
			h := http.Header{}
			for i := 0; i < len(fields); i += 2 {
				h.Add(fields[i], fields[i+1])
			}
			return h
		}
		const after, push = "Retry-After", "Grpc-Retry-Pushback-Ms"
		for name, tt := range map[string]struct {
			rsp  *http.Response
			err  error
			want time.Duration
			said bool
		}{
			"seconds":               {&http.Response{StatusCode: 503, Header: head(after, "7")}, nil, 7 * time.Second, true},
			"too many requests":     {&http.Response{StatusCode: 429, Header: head(after, "7")}, nil, 7 * time.Second, true},
			"now":                   {&http.Response{StatusCode: 503, Header: head(after, "0")}, nil, 0, true},
			"a date":                {&http.Response{StatusCode: 503, Header: head(after, in(time.Minute))}, nil, time.Minute, true},
			"a date that has been":  {&http.Response{StatusCode: 503, Header: head(after, in(-time.Minute))}, nil, 0, true},
			"longer than there is":  {&http.Response{StatusCode: 503, Header: head(after, "99999999999999999999")}, nil, math.MaxInt64, true},
			"negative":              {&http.Response{StatusCode: 503, Header: head(after, "-1")}, nil, 0, false},
			"signed":                {&http.Response{StatusCode: 503, Header: head(after, "+1")}, nil, 0, false},
			"a fraction":            {&http.Response{StatusCode: 503, Header: head(after, "1.5")}, nil, 0, false},
			"nothing":               {&http.Response{StatusCode: 503}, nil, 0, false},
			"of a redirection":      {&http.Response{StatusCode: 302, Header: head(after, "7")}, nil, 0, false},
			"of a success":          {&http.Response{StatusCode: 200, Header: head(after, "7")}, nil, 0, false},
			"of another failure":    {&http.Response{StatusCode: 500, Header: head(after, "7")}, nil, 0, false},
			"pushback":              {&http.Response{StatusCode: 200, Header: head(push, "150")}, nil, 150 * time.Millisecond, true},
			"in trailers":           {&http.Response{StatusCode: 200, Trailer: head(push, "150")}, nil, 150 * time.Millisecond, true},
			"trailers not here yet": {&http.Response{StatusCode: 200, Trailer: http.Header{push: nil}}, nil, 0, false},
			"do not":                {&http.Response{StatusCode: 200, Header: head(push, "-1")}, nil, -1, true},
			"do not, in words":      {&http.Response{StatusCode: 200, Header: head(push, "never")}, nil, -1, true},
			"too long for 32 bits":  {&http.Response{StatusCode: 200, Header: head(push, "2147483648")}, nil, -1, true},
			"repeated":              {&http.Response{StatusCode: 200, Header: head(push, "1", push, "2")}, nil, -1, true},
			"both":                  {&http.Response{StatusCode: 503, Header: head(after, "7", push, "150")}, nil, 7 * time.Second, true},
			"both, and do not":      {&http.Response{StatusCode: 503, Header: head(after, "7", push, "-1")}, nil, -1, true},
			"both, pushed further":  {&http.Response{StatusCode: 503, Header: head(after, "1", push, "1500")}, nil, 1500 * time.Millisecond, true},
			"a refusal":             {nil, &layer.Error{Layer: "rate", Kind: layer.ErrNotReady, RetryAfter: time.Second}, time.Second, true},
			"an error":              {nil, errors.New("odd"), 0, false},
			"nothing at all":        {nil, nil, 0, false},
		} {
			got, said := HTTP{}.RetryAfter(tt.rsp, tt.err)
			assert.Equal(t, tt.said, said, name)
			assert.Equal(t, tt.want, got, name)
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	now := time.Unix(1_700_000_000, 0)
	for _, s := range []string{"", "0", "120", "-1", "+1", "1e3", "99999999999", "Wed, 21 Oct 2015 07:28:00 GMT", "Tuesday, 14-Nov-23 22:13:25 GMT"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, ok := retryAfter(s, now)
		if d < 0 || !ok && d != 0 {
			t.Fatalf("%q is %v", s, d)
		}
		n, err := strconv.ParseUint(s, 10, 32)
		if err == nil && (!ok || d != time.Duration(n)*time.Second) {
			t.Fatalf("%q is %v", s, d)
		}
		date, err := http.ParseTime(s)
		if err == nil && (!ok || d != max(0, date.Sub(now))) {
			t.Fatalf("%q is %v", s, d)
		}
	})
}

func FuzzPushback(f *testing.F) {
	for _, s := range []string{"", "0", "150", "-1", "2147483647", "2147483648", "x", " 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, ok := pushback([]string{s})
		n, err := strconv.ParseInt(s, 10, 32)
		switch {
		case !ok:
			t.Fatalf("%q says nothing", s)
		case err != nil || n < 0:
			if d >= 0 {
				t.Fatalf("%q allows a retry after %v", s, d)
			}
		case d != time.Duration(n)*time.Millisecond:
			t.Fatalf("%q is %v", s, d)
		}
	})
}

func TestSetRetryAfter(t *testing.T) {
	for after, want := range map[time.Duration][2]string{
		time.Nanosecond:         {"1", "1"},
		time.Second:             {"1", "1000"},
		1500 * time.Millisecond: {"2", "1500"},
		math.MaxInt64:           {"9223372037", "2147483647"},
	} {
		h := http.Header{}
		setRetryAfter(h, after, false)
		setRetryAfter(h, after, true)
		assert.Equal(t, want, [2]string{h.Get("Retry-After"), h.Get("Grpc-Retry-Pushback-Ms")})
	}
}

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
			ahead, whole := HTTP{}.Peek(t.Context(), rsp)
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
		ahead, whole := HTTP{}.Peek(t.Context(), tt.rsp)
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
		ahead, whole := HTTP{}.Peek(t.Context(), body.response())
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
		ahead, whole := HTTP{}.Peek(ctx, body.response())
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
		ahead, _ := HTTP{}.Peek(t.Context(), body.response())
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
				ahead, whole := HTTP{}.Peek(t.Context(), body.response())
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
			ahead, whole := HTTP{}.Peek(t.Context(), rsp)
			got, err := io.ReadAll(ahead.Body)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), "%d", size)
			require.Equal(t, size <= peekMost, whole, "%d", size)
		}
	})
}

// talker is a server of streams that wait for their clients.
type talker struct {
	pb.UnimplementedTestServiceServer

	next  chan struct{} // a message more
	gone  chan struct{} // a client went away
	calls atomic.Int32
}

// StreamingOutputCall sends one message, and each further message on demand.
func (g *talker) StreamingOutputCall(r *pb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
	g.calls.Add(1)
	for i, p := range r.GetResponseParameters() {
		if i > 0 {
			select {
			case <-g.next:
			case <-s.Context().Done():
				g.gone <- struct{}{}
				return s.Context().Err()
			}
		}
		if err := s.Send(&pb.StreamingOutputCallResponse{Payload: payload(int(p.GetSize()))}); err != nil {
			return err
		}
	}
	return status.Error(codes.Unavailable, "late")
}

// FullDuplexCall sends a message at once, and then one for each received message.
func (g *talker) FullDuplexCall(s grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	g.calls.Add(1)
	if err := s.SendHeader(metadata.Pairs("hello", "you")); err != nil {
		return err
	}
	for {
		r, err := s.Recv()
		if err != nil {
			return nil //nolint:nilerr // the end
		}
		if err := s.Send(&pb.StreamingOutputCallResponse{Payload: r.GetPayload()}); err != nil {
			return err
		}
	}
}

// peekingProxy is a proxy before it, which peeks into all responses.
func peekingProxy(t *testing.T, g *talker) pb.TestServiceClient {
	t.Helper()
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, g)
	t.Cleanup(srv.Stop)
	svc := NewStack().Retry(layer.RetryPolicy[*http.Request, *http.Response]{
		MaxAttempts: 3, Backoff: layer.Backoff{Min: 1, Max: 1},
		CanRetry: func(*http.Request) bool { return true },
	}).Service(endpoint(t, serve(t, srv), WithHTTP2()))
	return grpcClient(t, serve(t, Handler(svc)))
}

// A bidirectional stream makes progress: the client waits for the headers before it sends,
// and the server waits for the client after its first message.
func TestPeekBidiStream(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	g := &talker{next: make(chan struct{}), gone: make(chan struct{}, 1)}
	c := peekingProxy(t, g)

	duplex, err := c.FullDuplexCall(ctx)
	require.NoError(t, err)
	head, err := duplex.Header()
	require.NoError(t, err)
	assert.Equal(t, []string{"you"}, head["hello"])
	for i := range 5 {
		require.NoError(t, duplex.Send(&pb.StreamingOutputCallRequest{Payload: payload(i * 10_000)}))
		got, err := duplex.Recv()
		require.NoError(t, err)
		assert.Len(t, got.GetPayload().GetBody(), i*10_000)
	}
	require.NoError(t, duplex.CloseSend())
	_, err = duplex.Recv()
	require.ErrorIs(t, err, io.EOF)

	sizes := []int32{10, 40_000, 1, 3_000, 200_000, 7}
	request := &pb.StreamingOutputCallRequest{}
	for _, size := range sizes {
		request.ResponseParameters = append(request.ResponseParameters, &pb.ResponseParameters{Size: size})
	}
	stream, err := c.StreamingOutputCall(ctx, request)
	require.NoError(t, err)
	for i, size := range sizes {
		if i > 0 {
			g.next <- struct{}{}
		}
		got, err := stream.Recv()
		require.NoError(t, err)
		require.Len(t, got.GetPayload().GetBody(), int(size))
	}
	_, err = stream.Recv()
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.EqualValues(t, 2, g.calls.Load(), "what fails after a message was handed on is not tried again")

	going, leave := context.WithCancel(ctx)
	stream, err = c.StreamingOutputCall(going, request)
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	leave()
	<-g.gone
}

// Trailers may arrive while the response is being classified. The Retry does not read them,
// because net/http is writing them.
func TestRetryTrailersRace(t *testing.T) {
	late := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", grpcType)
		w.WriteHeader(http.StatusServiceUnavailable)
		flush(w)
		say(w, "busy")
		flush(w)
		select {
		case <-time.After(peekWait): // just too late
		case <-r.Context().Done():
		}
		for _, name := range []string{"A", "B", "C", "D", "Grpc-Retry-Pushback-Ms"} {
			w.Header().Set(http.TrailerPrefix+name, "1")
		}
	}
	p := layer.RetryPolicy[*http.Request, *http.Response]{
		MaxAttempts: 20, Backoff: layer.Backoff{Min: 1, Max: 1},
		Budget: layer.NewBudget(0, 10, 1000),
		RetryIf: func(o layer.Outcome[*http.Response]) bool {
			_ = len(o.Response.Trailer)
			return true
		},
	}
	svc := NewStack().Retry(p).Service(endpoint(t, serve(t, http.HandlerFunc(late)), WithHTTP2()))
	for range 5 {
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
		require.NoError(t, err)
		require.Equal(t, "busy", read(t, rsp))
	}
}
