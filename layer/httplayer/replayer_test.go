package httplayer

import (
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

func TestReplayerIdempotent(t *testing.T) {
	for method, want := range map[string]bool{
		"": true, "GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "PUT": true, "DELETE": true,
		"POST": false, "PATCH": false, "CONNECT": false, "get": false, "LOCK": false,
	} {
		assert.Equal(t, want, Replayer{}.Idempotent(&http.Request{Method: method}), method)
	}
	for _, h := range []http.Header{{"Idempotency-Key": {"1"}}, {"X-Idempotency-Key": {"1"}}, {"Idempotency-Key": nil}} {
		assert.True(t, Replayer{}.Idempotent(&http.Request{Method: "POST", Header: h}), "%v", h)
	}
	assert.False(t, Replayer{}.Idempotent(&http.Request{Method: "POST", ProtoMajor: 2, Header: http.Header{"Content-Type": {"application/grpc"}}}))
}

func TestReplayerSentOnce(t *testing.T) {
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		assert.Nil(t, Replayer{}.Replay(&http.Request{Body: body}, 10))
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
		replay := Replayer{}.Replay(req, 10)
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

func TestReplayerKeepsBody(t *testing.T) {
	req, body := withWatchedBody("hello")
	before := *req
	replay := Replayer{}.Replay(req, 5)
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
	replay = Replayer{}.Replay(req, 5)
	first, ok := replay.Next()
	require.True(t, ok)
	got, err := io.ReadAll(first.Body)
	require.NoError(t, err)
	assert.Equal(t, "hello, world", string(got))
	_, ok = replay.Next()
	assert.False(t, ok, "it turned out longer than the limit")
}

func TestReplayerGetBody(t *testing.T) {
	req, body := withWatchedBody(strings.Repeat("x", 1000))
	var got []*asked
	req.GetBody = func() (io.ReadCloser, error) {
		if len(got) == 2 {
			return nil, errors.New("no more")
		}
		got = append(got, &asked{Reader: strings.NewReader("again")})
		return got[len(got)-1], nil
	}
	replay := Replayer{}.Replay(req, 10) // the limit does not apply to GetBody
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

func TestReplayerDrain(t *testing.T) {
	Replayer{}.Drain(nil)
	Replayer{}.Drain(&http.Response{})
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
		Replayer{}.Drain(&http.Response{StatusCode: 503, Body: body, ContentLength: tt.said, ProtoMajor: 1})
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
func TestReplayerDrainSilentBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		began := time.Now()
		Replayer{}.Drain(&http.Response{StatusCode: 503, Body: r, ContentLength: -1, ProtoMajor: 1})
		assert.Less(t, time.Since(began), 100*time.Millisecond)
		_, err := w.Write([]byte("x"))
		assert.ErrorIs(t, err, io.ErrClosedPipe)
	})
}

// The connection of a discarded response is reused.
func TestReplayerDrainKeepsConnection(t *testing.T) {
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
			Replayer{}.Drain(rsp)
			assert.Equal(t, 1, e.Describe().State.Get("idle"))
		}
	})
}
