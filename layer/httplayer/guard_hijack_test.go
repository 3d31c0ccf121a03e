package httplayer

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pipes accepts pipes: what is written to one has been read by the other side.
type pipes chan net.Conn

func (l pipes) Accept() (net.Conn, error) {
	conn, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (l pipes) Close() error {
	close(l)
	return nil
}

func (l pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (l pipes) dial(t *testing.T) (net.Conn, *bufio.Reader) {
	server, client := net.Pipe()
	t.Cleanup(func() { client.Close() })
	l <- server
	require.NoError(t, client.SetDeadline(time.Now().Add(10*time.Second)))
	return client, bufio.NewReader(client)
}

// A handler may answer first and hijack then, as most that serve CONNECT and
// some that serve WebSocket do: what the client sends in between is not HTTP.
func TestGuardLetsGoWhatWasAnsweredBefore(t *testing.T) {
	guard := NewGuard()
	sent := make(chan struct{})
	l := make(pipes)
	serveOn(t, guard.Listener(l), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusSwitchingProtocols)
		flush(w)
		<-sent
		conn, in, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		_, _ = io.CopyN(conn, in, 7)
	}))
	for _, first := range []string{"\x81", "\x00", "\r", "\n", " ", "G"} {
		conn, in := l.dial(t)
		say(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rsp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
		say(conn, first)
		sent <- struct{}{}
		go say(conn, "\x05hello")
		got, err := io.ReadAll(in)
		require.NoError(t, err)
		assert.Equal(t, first+"\x05hello", string(got))
	}
	assert.Empty(t, cuts(guard))
}

// A byte that comes alone while a handler runs is no tunnel's, if the handler
// does not hijack.
func TestGuardRefusesAByteThatCameAlone(t *testing.T) {
	for _, bad := range []string{"\x81", "\x00", "\n", " ", ":"} {
		for _, method := range []string{"GET", "POST"} {
			guard := NewGuard()
			sent := make(chan struct{})
			l := make(pipes)
			serveOn(t, guard.Listener(l), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "/first", r.URL.Path)
				<-sent
				assert.NoError(t, r.Context().Err())
			}))
			conn, in := l.dial(t)
			say(conn, method+" /first HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
			say(conn, bad)
			sent <- struct{}{}
			status, _, _ := guardAnswer(t, in)
			assert.Equal(t, http.StatusOK, status)
			status, _, closes := guardAnswer(t, in)
			assert.Equal(t, http.StatusBadRequest, status)
			assert.True(t, closes)
			_, err := in.ReadByte()
			assert.ErrorIs(t, err, io.EOF)
			assert.Len(t, cuts(guard), 1)
		}
	}
}

// Whoever hijacks a connection that was cut gets nothing that its client did
// not send.
func TestGuardTunnelsNothingOfItsOwn(t *testing.T) {
	guard := NewGuard()
	got := make(chan string, 1)
	addr := guardedServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		assert.Eventually(t, func() bool { return len(cuts(guard)) > 0 }, 20*time.Second, time.Millisecond)
		conn, _, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		text, err := io.ReadAll(conn)
		var cut *GuardError
		assert.ErrorAs(t, err, &cut)
		got <- string(text)
	}), guard)
	conn, _ := guardDial(t, addr)
	say(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET\x81\x05hello")
	assert.Empty(t, <-got)
}

// What is sent in one piece with a request that ends HTTP goes through its tunnel,
// whatever it looks like.
func TestGuardKeepsWhatCameWithAnUpgrade(t *testing.T) {
	for _, ask := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\nContent-Length: 2\r\n\r\nhi",
		"POST / HTTP/1.1\r\nHost: a\r\nupgrade: echo\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
		"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
	} {
		for _, early := range []string{
			"\x16\x03\x01\x00\n", "SSH-2.0-x\r\n", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\n",
			"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n\x16", strings.Repeat("\x00", 10_000),
		} {
			guard := NewGuard()
			addr := guardedServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				conn, in, err := http.NewResponseController(w).Hijack()
				if !assert.NoError(t, err) {
					return
				}
				defer conn.Close()
				got := make([]byte, len(early))
				_, err = io.ReadFull(in, got)
				assert.NoError(t, err)
				_, _ = conn.Write(got)
			}), guard)
			conn, in := guardDial(t, addr)
			say(conn, ask+early)
			got, err := io.ReadAll(in)
			assert.NoError(t, err)
			assert.Equal(t, early, string(got), ask)
			assert.Empty(t, cuts(guard))
		}
	}
}

// And if there is no tunnel, it is a next request, or none.
func TestGuardLooksAtWhatCameWithAnUpgradeInVain(t *testing.T) {
	const upgrade = "GET /length HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
	for next, status := range map[string]int{
		"GET /length HTTP/1.1\r\nHost: a\r\n\r\n":                                                http.StatusOK,
		"GET /length HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n": http.StatusBadRequest,
		"\x16\x03\x01\x00\n":                        http.StatusBadRequest,
		"\nGET /length HTTP/1.1\r\nHost: a\r\n\r\n": http.StatusBadRequest,
	} {
		guard := NewGuard()
		conn, in := guardDial(t, guardedServer(t, http.HandlerFunc(shapes), guard))
		say(conn, upgrade+upgrade+next)
		for _, want := range []int{http.StatusOK, http.StatusOK, status} {
			got, _, _ := guardAnswer(t, in)
			assert.Equal(t, want, got, next)
		}
		if status == http.StatusBadRequest {
			assert.Len(t, cuts(guard), 1)
		}
	}
}

// RFC 9112, section 3.2.2: a proxy goes by the target.
func TestGuardTargetOverHost(t *testing.T) {
	const ask = "GET http://web/ HTTP/1.1\r\nHost: other\r\n\r\n"
	up, heads := application(t, okAnswer)
	s := NewServer(Handler(endpoint(t, up)))
	conn, done := callOn(t, t.Context(), s)
	say(conn, ask)
	rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, rsp.StatusCode)
	got := <-heads
	assert.Equal(t, "GET http://web/ HTTP/1.1", got.first)
	assert.Equal(t, []string{"Host: web"}, got.fields)
	conn.Close()
	<-done

	guard := NewGuard(WithHostMismatch())
	conn, in := guardDial(t, guardedServer(t, http.HandlerFunc(shapes), guard))
	say(conn, "GET http://me@web/ HTTP/1.1\r\nHost: other\r\n\r\n")
	status, _, _ := guardAnswer(t, in)
	assert.Equal(t, http.StatusBadRequest, status)
}

// A server that is closed does not wait for one connection after the other.
func TestGuardClosesAtOnceWhileServing(t *testing.T) {
	guard := NewGuard()
	release := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := serveOn(t, guard.Listener(l), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer close(release)
	const conns = 400
	for range conns {
		conn, _ := guardDial(t, l.Addr().String())
		say(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET\x00")
	}
	require.Eventually(t, func() bool { return guard.Rejected(ControlByte) == conns }, 20*time.Second, time.Millisecond)
	began := time.Now()
	require.NoError(t, srv.Close())
	assert.Less(t, time.Since(began), conns*guardLinger/2)
}

// A chunk that is none ends the connection, also where the client waited to be
// told to go on.
func TestBadChunkBehindAnExpectation(t *testing.T) {
	upstream := newRecorder(t)
	for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
		conn, in := guardDial(t, guarded(t, endpoint(t, upstream.addr, WithHTTP1()), nil))
		say(conn, "POST / HTTP/1.1\r\nHost: a\r\n"+expect+"Transfer-Encoding: chunked\r\n\r\nzz\r\n"+
			"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
		text, err := io.ReadAll(in)
		require.NoError(t, err)
		// It may be told twice, by the server and by the upstream.
		answers := strings.ReplaceAll(string(text), "HTTP/1.1 100 Continue\r\n\r\n", "")
		rsp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answers)), nil)
		require.NoError(t, err)
		assert.Equal(t, http.StatusBadRequest, rsp.StatusCode)
		assert.True(t, rsp.Close)
		assert.Equal(t, 1, strings.Count(answers, "HTTP/1.1 "), answers)
	}
	found, _ := upstream.requests()
	assert.Empty(t, found)
}
