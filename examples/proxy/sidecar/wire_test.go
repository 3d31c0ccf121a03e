package sidecar_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
)

// receivedRequest is a request as an application received it.
type receivedRequest struct {
	conn   int // the connection's number
	first  string
	fields []string // sorted
	body   string
}

// application responds to every request with answer, and reports the request. It closes the
// connection after an answer with Connection: close.
func application(t testing.TB, answer string) (addr string, got <-chan receivedRequest) {
	t.Helper()
	out := make(chan receivedRequest, 100)
	return conntest.Serve(t, func(n int, conn net.Conn) {
		var raw bytes.Buffer
		in := bufio.NewReader(io.TeeReader(conn, &raw))
		for {
			raw.Reset()
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			first, fields := headOf(raw.String())
			out <- receivedRequest{n, first, fields, string(body)}
			say(conn, answer)
			if strings.Contains(answer, "Connection: close") || req.ProtoMinor == 0 {
				return
			}
		}
	}), out
}

// headOf returns the first line and the sorted fields of a head.
func headOf(text string) (first string, fields []string) {
	text, _, _ = strings.Cut(text, "\r\n\r\n")
	lines := strings.Split(text, "\r\n")
	fields = slices.DeleteFunc(lines[1:], func(s string) bool { return strings.HasPrefix(s, "Date: ") })
	slices.Sort(fields)
	return lines[0], fields
}

// say writes s and ignores errors, because the other end detects missing bytes.
func say(w io.Writer, s string) { _, _ = io.WriteString(w, s) }

// wire is a client that can send any bytes.
type wire struct {
	net.Conn
	in  *bufio.Reader
	raw bytes.Buffer // all received bytes
}

func dialWire(t testing.TB, addr string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	return newWire(t, conn)
}

func newWire(t testing.TB, conn net.Conn) *wire {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(soon)))
	w := &wire{Conn: conn}
	w.in = bufio.NewReader(io.TeeReader(conn, &w.raw))
	return w
}

// ask sends a request with lines that end in \n. It returns the response's first line, its sorted
// header fields without the date, and its body.
func (w *wire) ask(t testing.TB, sent string) (first string, fields []string, body string) {
	t.Helper()
	say(w, strings.ReplaceAll(sent, "\n", "\r\n"))
	method, _, _ := strings.Cut(sent, " ")
	w.raw.Reset()
	rsp, err := http.ReadResponse(w.in, &http.Request{Method: method})
	require.NoError(t, err, sent)
	if rsp.StatusCode != http.StatusSwitchingProtocols && (method != http.MethodConnect || rsp.StatusCode/100 != 2) {
		b, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		body = string(b)
	}
	first, fields = headOf(w.raw.String())
	return first, fields, body
}

// hear reads exactly want.
func (w *wire) hear(t testing.TB, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(w.in, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

// over requires that the other end has closed the connection without a reset.
func (w *wire) over(t testing.TB) {
	t.Helper()
	rest, err := io.ReadAll(w.in)
	require.NoError(t, err)
	require.Empty(t, string(rest))
}

func (w *wire) closeWrite(t testing.TB) {
	t.Helper()
	tcp, ok := w.Conn.(*net.TCPConn)
	require.True(t, ok)
	require.NoError(t, tcp.CloseWrite())
}

// shouting is a server that sends greeting, echoes in upper case, and sends bye at the end of
// input.
func shouting(t testing.TB, greeting string) (addr string) {
	t.Helper()
	return conntest.Serve(t, func(_ int, conn net.Conn) {
		say(conn, greeting)
		shout(conn)
	})
}

func shout(conn net.Conn) {
	p := make([]byte, 1024)
	for {
		n, err := conn.Read(p)
		say(conn, strings.ToUpper(string(p[:n])))
		if err != nil {
			break
		}
	}
	say(conn, "bye")
}

// tunnelled accepts every CONNECT and Upgrade with answer, and then echoes in upper case.
func tunnelled(t testing.TB, answer string) (addr string, heads <-chan string) {
	t.Helper()
	out := make(chan string, 10)
	return conntest.Serve(t, func(_ int, conn net.Conn) {
		var text []byte
		for one := make([]byte, 1); !strings.HasSuffix(string(text), "\r\n\r\n"); text = append(text, one...) {
			if _, err := io.ReadFull(conn, one); err != nil {
				return
			}
		}
		out <- strings.ReplaceAll(string(text), "\r\n", "\n")
		say(conn, answer)
		shout(conn)
	}), out
}

// converse sends words to an echo server, each after the response to the previous one. It then
// closes one direction before the other.
func converse(t testing.TB, w *wire) {
	t.Helper()
	for _, word := range []string{"one", "two"} {
		say(w, word)
		w.hear(t, strings.ToUpper(word))
	}
	w.closeWrite(t)
	w.hear(t, "bye")
	w.over(t)
}
