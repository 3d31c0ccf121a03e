package httplayer

import (
	"bufio"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A server that says more than it was asked for has it given to nobody, however
// quick the next request is.
func TestWhatComesBehindAResponse(t *testing.T) {
	t.Parallel()
	log.SetOutput(io.Discard)                      //nolint:forbidigo // net/http complains there of each
	t.Cleanup(func() { log.SetOutput(os.Stderr) }) //nolint:forbidigo // as it was
	const more = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"
	answers := map[string]string{
		"HEAD /length":    "HTTP/1.1 200 OK\r\nContent-Length: 43\r\n\r\n" + more,
		"HEAD /none":      "HTTP/1.1 200 OK\r\n\r\n" + more,
		"GET /204":        "HTTP/1.1 204 No Content\r\n\r\n" + more,
		"GET /304":        "HTTP/1.1 304 Not Modified\r\n\r\n" + more,
		"GET /empty":      "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" + more,
		"GET /body":       "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody" + more,
		"GET /chunked":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n" + more,
		"GET /afterwards": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright",
	}
	addr := rawServer(t, func(_ int, conn net.Conn) {
		in := bufio.NewReader(conn)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			if _, err = io.WriteString(conn, answers[r.Method+" "+r.URL.Path]); err != nil {
				return
			}
		}
	})
	for path, method := range map[string]string{
		"/length": http.MethodHead, "/none": http.MethodHead, "/204": http.MethodGet, "/304": http.MethodGet,
		"/empty": http.MethodGet, "/body": http.MethodGet, "/chunked": http.MethodGet,
	} {
		t.Run(method+path, func(t *testing.T) {
			e := endpoint(t, addr, WithHTTP1())
			for range 300 {
				rsp, err := e.Call(t.Context(), request(t, method, "http://web"+path, ""))
				require.NoError(t, err)
				read(t, rsp)
				rsp, err = e.Call(t.Context(), request(t, http.MethodGet, "http://web/afterwards", ""))
				require.NoError(t, err)
				require.Equal(t, "right", read(t, rsp))
			}
			assert.Zero(t, e.Describe().State.Get("in_flight"))
		})
	}
}

// What comes while nobody asks is the end of the connection, though the next
// request is on its way to it already.
func TestWhatComesUnasked(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	w := &wire{Conn: here}
	w.rest.came = make(chan struct{}, 1)
	got := make(chan error, 1)
	reading := func() {
		_, err := w.Read(make([]byte, 10))
		got <- err
	}

	go reading()
	require.True(t, w.rest.settle())
	go func() { _, _ = io.ReadFull(there, make([]byte, 3)) }()
	_, err := w.Write([]byte("ask"))
	require.NoError(t, err)
	_, err = there.Write([]byte("answer"))
	require.NoError(t, err)
	require.NoError(t, <-got)

	go reading()
	require.True(t, w.rest.settle())
	_, err = there.Write([]byte("unasked"))
	require.NoError(t, err)
	require.ErrorIs(t, <-got, errUnasked)
	assert.True(t, w.lost.Load(), "the request may go by another")
	require.False(t, w.rest.settle())
}

// Whoever waits for a connection to come to rest is let go when it ends.
func TestSettleEnds(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	for range 100 {
		w := &wire{Conn: here}
		w.rest.came = make(chan struct{}, 1)
		rested := make(chan bool)
		go func() { rested <- w.rest.settle() }()
		go w.Close()
		assert.False(t, <-rested)
	}
}
