package view

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// fake is a Source with scripted answers.
type fake struct {
	watch func(ctx context.Context, req *tappb.WatchRequest, yield func(tap.Event, error) bool)
	top   func(ctx context.Context, req *tappb.TopRequest, yield func(*tappb.TopResponse, error) bool)
}

var errNothing = errors.New("nothing to see")

func (f fake) Watch(ctx context.Context, req *tappb.WatchRequest) iter.Seq2[tap.Event, error] {
	return func(yield func(tap.Event, error) bool) {
		if f.watch == nil {
			yield(tap.Event{}, errNothing)
			return
		}
		f.watch(ctx, req, yield)
	}
}

func (f fake) Top(ctx context.Context, req *tappb.TopRequest) iter.Seq2[*tappb.TopResponse, error] {
	return func(yield func(*tappb.TopResponse, error) bool) {
		if f.top == nil {
			yield(nil, errNothing)
			return
		}
		f.top(ctx, req, yield)
	}
}

// serve serves h, with short intervals.
func serve(t *testing.T, c Config) (h *Handler, url string) {
	t.Helper()
	h = New(c)
	h.live.every, h.batchEvery = 10*time.Millisecond, 20*time.Millisecond
	if _, ok := c.Registry.(*tap.Registry); ok {
		h.live.every = 100 * time.Millisecond // it counts no faster
	}
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		h.Shutdown()
		srv.Close()
	})
	return h, srv.URL
}

// message is one server-sent event.
type message struct{ event, data string }

// into reads the JSON of a message.
func (m message) into(t *testing.T, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(m.data), v), m.data)
}

// listener reads a stream as a browser does.
type listener struct {
	t    *testing.T
	body io.ReadCloser
	text *bufio.Scanner
	all  strings.Builder // everything that came
}

func listen(t *testing.T, url string) *listener {
	t.Helper()
	return listenBy(t, http.DefaultTransport, url)
}

func listenBy(t *testing.T, by http.RoundTripper, url string) *listener {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	rsp, err := by.RoundTrip(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, rsp.StatusCode)
	require.Equal(t, "text/event-stream", rsp.Header.Get("Content-Type"))
	require.Equal(t, "no-store", rsp.Header.Get("Cache-Control"))
	l := &listener{t: t, body: rsp.Body, text: bufio.NewScanner(rsp.Body)}
	l.text.Buffer(nil, 8<<20)
	t.Cleanup(l.leave)
	return l
}

func (l *listener) leave() { _ = l.body.Close() }

// next returns the next message, comments left out, or false at the end.
func (l *listener) next() (m message, ok bool) {
	for l.text.Scan() {
		l.all.WriteString(l.text.Text() + "\n")
		field, value, _ := strings.Cut(l.text.Text(), ": ")
		switch field {
		case "event":
			m.event = value
		case "data":
			m.data += value
		case "":
			if m.event != "" {
				return m, true
			}
		default:
			require.Fail(l.t, "not an event stream", l.text.Text())
		}
	}
	return m, false
}

// await returns the next message of that name.
func (l *listener) await(event string) message {
	l.t.Helper()
	for {
		m, ok := l.next()
		require.True(l.t, ok, "the stream ended")
		if m.event == event {
			return m
		}
	}
}
