package httplayer

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestGuardedServerServesWhatAStrictParserFinds sends requests, most of them
// right, in pieces, and compares those that a handler got with those that are
// there.
func TestGuardedServerServesWhatAStrictParserFinds(t *testing.T) {
	l := make(pipes)
	got, over := make(chan message, 100), make(chan struct{}, 1)
	serveOn(t, NewGuard().Listener(l), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		got <- message{Method: r.Method, Target: r.RequestURI, Body: string(body)}
	}), func(s *http.Server) {
		s.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed { // so no handler of it runs any more
				over <- struct{}{}
			}
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		text, right := drawRequests(rt)
		conn, in := l.dial(t)
		read := make(chan lastAnswer)
		go func() { read <- answersOf(in) }()
		sendInPieces(rt, conn, text)
		if !right { // it may wait for more
			_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		}
		answers := <-read
		conn.Close()
		select {
		case <-over:
		case <-time.After(patience):
			require.Fail(rt, "it is still served", "%q", text)
		}
		var served []message
		for len(got) > 0 {
			served = append(served, <-got)
		}
		want, wrong := newStrict().parse([]byte(text))
		for i := range want {
			want[i].End, want[i].Framings = 0, 0
		}
		require.LessOrEqual(rt, len(served), len(want), "%q", text)
		if !right { // net/http refuses more, an empty line before a request
			want = append([]message(nil), want[:len(served)]...)
		}
		assert.Equal(rt, want, served, "%q", text)
		told := answers.closes || answers.late
		assert.True(rt, told || !wrong, "not told of %q", text)
	})
	require.Empty(t, got)
}

// lastAnswer is how the answers to some requests end.
type lastAnswer struct{ closes, late bool }

func answersOf(in *bufio.Reader) (a lastAnswer) {
	for {
		rsp, err := http.ReadResponse(in, nil)
		if err != nil {
			a.late = errors.Is(err, os.ErrDeadlineExceeded)
			return a
		}
		_, _ = io.Copy(io.Discard, rsp.Body)
		a.closes = rsp.Close
	}
}

// drawRequests ends with one after which the server closes.
func drawRequests(t *rapid.T) (text string, right bool) {
	var b strings.Builder
	for range rapid.IntRange(0, 4).Draw(t, "requests") {
		b.WriteString(rapid.SampledFrom([]string{
			"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n",
			"GET /0 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
			"PUT /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na\r\n",
			"POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n\r\n\r\r\n",
			"PUT /3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\"\r\na\r\n\r\n0\r\nX: y\r\n\r\n",
			"PUT /4 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0000\r\n\r\n",
			"PUT /4 HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 4030) + "\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		}).Draw(t, "request"))
	}
	b.WriteString("GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	if rapid.Bool().Draw(t, "right") {
		return b.String(), true
	}
	whole := b.String()
	at := rapid.IntRange(0, len(whole)-1).Draw(t, "at")
	odd := rapid.SampledFrom([]string{"\r", "\n", "\r\n", " ", "\x00", "0", ";", ":", "\t", ""}).Draw(t, "odd")
	return whole[:at] + odd + whole[at+rapid.IntRange(0, 1).Draw(t, "instead"):] + "\r\n\r\n", false
}

func sendInPieces(t *rapid.T, conn net.Conn, text string) {
	most := rapid.SampledFrom([]int{1, 7, 5000}).Draw(t, "piece")
	for len(text) > 0 {
		n := min(len(text), most)
		if _, err := io.WriteString(conn, text[:n]); err != nil {
			return
		}
		text = text[n:]
	}
}
