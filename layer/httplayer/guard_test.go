package httplayer

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// guardDial is a connection to addr, with a deadline.
func guardDial(t testing.TB, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn, bufio.NewReader(conn)
}

// guardedServer serves h behind a guard.
func guardedServer(t testing.TB, h http.Handler, guard *Guard, opts ...func(*http.Server)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveOn(t, guard.Listener(l), h, opts...)
	return l.Addr().String()
}

func guardAnswer(t testing.TB, in *bufio.Reader) (status int, body string, closes bool) {
	t.Helper()
	rsp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	return rsp.StatusCode, read(t, rsp), rsp.Close
}

// A request that is being served does not notice what is wrong behind it, and
// is answered first.
func TestGuardAnswersWhatCameBefore(t *testing.T) {
	for name, bad := range map[string]string{
		"in the same piece":        "GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n",
		"with the first byte":      "\x00",
		"in a body":                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;\nhello",
		"with the last byte":       "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
		"behind another good one?": "GET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET\x00",
	} {
		t.Run(name, func(t *testing.T) {
			guard := NewGuard()
			release := make(chan struct{})
			addr := guardedServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					w.WriteHeader(http.StatusBadRequest)
					return
				}
				if r.URL.Path == "/first" {
					<-release
				}
				assert.NoError(t, r.Context().Err())
				say(w, r.URL.Path)
			}), guard)
			conn, in := guardDial(t, addr)
			say(conn, "GET /first HTTP/1.1\r\nHost: a\r\n\r\n"+bad)
			require.Eventually(t, func() bool { return len(cuts(guard)) > 0 }, 20*time.Second, time.Millisecond)
			close(release)
			status, body, _ := guardAnswer(t, in)
			assert.Equal(t, http.StatusOK, status)
			assert.Equal(t, "/first", body)
			if strings.HasPrefix(bad, "GET /2") {
				_, body, _ = guardAnswer(t, in)
				assert.Equal(t, "/2", body)
			}
			status, _, closes := guardAnswer(t, in)
			assert.Equal(t, http.StatusBadRequest, status)
			assert.True(t, closes)
			_, err := in.ReadByte()
			assert.ErrorIs(t, err, io.EOF)
		})
	}
}

func TestGuardTells(t *testing.T) {
	var mu sync.Mutex
	var text bytes.Buffer
	counter := counts{}
	guard := NewGuard(WithGuardLogger(slog.New(slog.NewTextHandler(lockedWriter{&mu, &text}, nil))), WithGuardCounter(counter.counter()))
	addr := guardedServer(t, http.HandlerFunc(shapes), guard)
	conn, in := guardDial(t, addr)
	say(conn, "GET / HTTP/1.1\nHost: a\n\n")
	status, _, _ := guardAnswer(t, in)
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Equal(t, map[string]int64{"bare_lf": 1}, cuts(guard))
	assert.EqualValues(t, 1, counter["reason=bare_lf"].Load())
	assert.Zero(t, counter["reason=field"].Load())
	mu.Lock()
	defer mu.Unlock()
	assert.Contains(t, text.String(), "reason=bare_lf offset=14")
	assert.Contains(t, text.String(), "client="+conn.LocalAddr().String())
	assert.Equal(t, "unknown", GuardReason(0).String())
	assert.Zero(t, guard.Rejected(guardReasons))
	for r := GuardReason(1); r < guardReasons; r++ {
		assert.NotEqual(t, "unknown", r.String())
	}
	err := &GuardError{Reason: BareLF, Offset: 14, Remote: conn.LocalAddr()}
	assert.Contains(t, err.Error(), "bare_lf, at byte 14 of the connection")
}

// counts are counters by their label.
type counts map[string]*atomic.Int64

func (c counts) counter() metrics.Counter { return labelled{c, ""} }

type labelled struct {
	all   counts
	label string
}

func (c labelled) Add(delta float64) { c.all[c.label].Add(int64(delta)) }

func (c labelled) With(labels ...string) metrics.Counter {
	label := strings.Join(labels, "=")
	c.all[label] = new(atomic.Int64)
	return labelled{c.all, label}
}

// Whoever reads on gets the error.
func TestGuardConnEndsWithItsError(t *testing.T) {
	server, client := net.Pipe()
	defer client.Close()
	conn := NewGuard().Conn(server)
	defer conn.Close()
	go say(client, "GET / HTTP/1.1\r\nA B")
	got, err := io.ReadAll(conn)
	var cut *GuardError
	require.ErrorAs(t, err, &cut)
	assert.Equal(t, SpaceBeforeColon, cut.Reason)
	assert.EqualValues(t, 17, cut.Offset)
	assert.Equal(t, "GET / HTTP/1.1\r\nA"+guardSpoil, string(got))
	_, err = http.ReadRequest(bufio.NewReader(bytes.NewReader(got)))
	assert.Error(t, err)
	assert.Same(t, server, conn.(interface{ NetConn() net.Conn }).NetConn())
}

func TestGuardLetsUpgradesGo(t *testing.T) {
	guard := NewGuard()
	backend := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		say(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, in)
	}))
	e := endpoint(t, backend, WithHTTP1())
	conn, in := guardDial(t, guarded(t, e, guard))
	say(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	rsp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
	for _, text := range []string{"\x00\x81\r\n\n\n \x7f", strings.Repeat("\x00", 100_000)} {
		go say(conn, text)
		got := make([]byte, len(text))
		_, err = io.ReadFull(in, got)
		require.NoError(t, err)
		assert.Equal(t, text, string(got))
	}
	assert.Empty(t, cuts(guard))
}

// An upgrade that was not granted is a request like others.
func TestGuardKeepsWhatIsNotUpgraded(t *testing.T) {
	guard := NewGuard()
	addr := guardedServer(t, http.HandlerFunc(shapes), guard)
	for _, ask := range []string{
		"GET /length HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
		"CONNECT /length HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		conn, in := guardDial(t, addr)
		say(conn, ask)
		status, _, _ := guardAnswer(t, in)
		assert.Equal(t, http.StatusOK, status)
		say(conn, "\x81\x05hello")
		status, _, _ = guardAnswer(t, in)
		assert.Equal(t, http.StatusBadRequest, status)
	}
	assert.Equal(t, map[string]int64{"request_line": 2}, cuts(guard))
}

func TestGuardLetsTunnelsGo(t *testing.T) {
	guard := NewGuard()
	addr := guardedServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		say(conn, "HTTP/1.1 200 OK\r\n\r\n")
		_, _ = io.CopyN(conn, in, 5)
		_ = conn.(halfCloser).CloseWrite()
	}), guard)
	conn, in := guardDial(t, addr)
	say(conn, "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n")
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "HTTP/1.1 200 OK\r\n", line)
	say(conn, "\x16\x03\x01\x00\n")
	rest, err := io.ReadAll(in)
	require.NoError(t, err)
	assert.Equal(t, "\r\n\x16\x03\x01\x00\n", string(rest))
	assert.Empty(t, cuts(guard))
}

// HTTP/2 passes, in whatever pieces its preface comes.
func TestGuardPassesHTTP2(t *testing.T) {
	guard := NewGuard()
	addr := guardedServer(t, http.HandlerFunc(shapes), guard)
	rsp, err := client(t, true).Get("http://" + addr + "/what")
	require.NoError(t, err)
	assert.Contains(t, read(t, rsp), "HTTP/2.0 GET")

	conn, in := guardDial(t, addr)
	require.NoError(t, conn.(*net.TCPConn).SetNoDelay(true))
	for _, c := range []byte(h2Preface) {
		say(conn, string(c))
	}
	say(conn, "\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	head := make([]byte, 9)
	_, err = io.ReadFull(in, head)
	require.NoError(t, err)
	assert.EqualValues(t, frameSettings, head[3])
	assert.Empty(t, cuts(guard))
}

// The server's patience with heads and bodies is what it was.
func TestGuardKeepsDeadlines(t *testing.T) {
	t.Parallel()
	const patience = 300 * time.Millisecond
	for name, begun := range map[string]string{
		"nothing": "", "part of a preface": "PRI * HTTP/2.0\r\n\r\n", "part of a head": "GET / HTTP/1.1\r\nHo",
		"part of a body": "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
	} {
		t.Run(name, func(t *testing.T) {
			guard := NewGuard()
			addr := guardedServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, err := io.Copy(io.Discard, r.Body)
				var late net.Error
				assert.ErrorAs(t, err, &late)
			}), guard, func(s *http.Server) { s.ReadHeaderTimeout, s.ReadTimeout = patience, 2*patience })
			began := time.Now()
			conn, in := guardDial(t, addr)
			say(conn, begun)
			_, err := io.Copy(io.Discard, in)
			require.NoError(t, err, "cut")
			assert.GreaterOrEqual(t, time.Since(began), patience/2)
			assert.Less(t, time.Since(began), 20*time.Second)
			assert.Empty(t, cuts(guard))
		})
	}
}

// A preface that is interrupted is not lost, however little of it is asked for
// at a time.
func TestGuardHoldsAPreface(t *testing.T) { synctest.Test(t, testGuardHoldsAPreface) }

func testGuardHoldsAPreface(t *testing.T) {
	server, client := net.Pipe()
	defer client.Close()
	conn := NewGuard().Conn(server)
	defer conn.Close()
	for _, part := range []string{h2Preface[:3], h2Preface[3:18]} {
		go say(client, part)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Millisecond)))
		n, err := conn.Read(make([]byte, 100))
		assert.Zero(t, n)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	require.NoError(t, conn.SetReadDeadline(time.Time{}))
	go say(client, h2Preface[18:]+"\x00")
	for _, want := range []string{h2Preface[:7], h2Preface[7:14], h2Preface[14:21], h2Preface[21:] + "\x00"} {
		got := make([]byte, 7)
		n, err := io.ReadFull(conn, got[:len(want)])
		require.NoError(t, err)
		assert.Equal(t, want, string(got[:n]))
	}
}

// The answer arrives although much of the request was never read.
func TestGuardAnswersBeforeTheRestIsRead(t *testing.T) {
	addr := guardedServer(t, http.HandlerFunc(shapes), NewGuard())
	for range 20 {
		conn, in := guardDial(t, addr)
		say(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n"+strings.Repeat("x", 200_000))
		status, _, _ := guardAnswer(t, in)
		assert.Equal(t, http.StatusBadRequest, status)
	}
}

// What the client had sent is read before the connection is closed, up to a bound
// and for a while: closed with bytes unread it would be reset, and the answer lost.
func TestGuardLingers(t *testing.T) {
	const told = 10 // bytes that were read when net/http was told
	for text, want := range map[string][]string{
		"\x00" + strings.Repeat("x", 1000):          {"close write", "read for a while", "close after 1001 bytes"},
		"\x00" + strings.Repeat("x", 2*guardRest):   {"close write", "read for a while", fmt.Sprintf("close after %d bytes", told+guardRest)},
		"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n": {"close after 10 bytes"},
	} {
		below := &noting{in: strings.NewReader(text)}
		conn := NewGuard().Conn(below)
		_, err := conn.Read(make([]byte, told))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		assert.Equal(t, want, below.did)
	}
}

// noting is a connection that notes how it is closed.
type noting struct {
	net.Conn
	in   io.Reader
	read int
	did  []string
}

func (c *noting) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.read += n
	return n, err
}

func (c *noting) RemoteAddr() net.Addr { return &net.TCPAddr{} }

func (c *noting) SetReadDeadline(time.Time) error {
	c.did = append(c.did, "read for a while")
	return nil
}

func (c *noting) CloseWrite() error {
	c.did = append(c.did, "close write")
	return nil
}

func (c *noting) Close() error {
	c.did = append(c.did, fmt.Sprintf("close after %d bytes", c.read))
	return nil
}

// An idle connection that was cut does not hold the server's end up.
func TestGuardClosesOnce(t *testing.T) {
	server, client := net.Pipe()
	conn := NewGuard().Conn(server)
	go say(client, "\x00")
	_, err := io.ReadAll(conn)
	require.Error(t, err)
	require.NoError(t, conn.Close())
	_ = client.Close()
	assert.Error(t, conn.(halfCloser).CloseWrite(), "a pipe has no halves")
}

// io.Copy to a client still finds what the connection below can do.
func TestGuardSendsFiles(t *testing.T) {
	_, direct := NewGuard().Conn(&tells{}).(io.ReaderFrom)
	require.True(t, direct)
	to := &tells{}
	n, err := io.Copy(NewGuard().Conn(to), struct{ io.Reader }{strings.NewReader("hello")})
	require.NoError(t, err)
	assert.EqualValues(t, 5, n)
	assert.True(t, to.asked)

	server, client := net.Pipe()
	got := make(chan string)
	go func() {
		text, _ := io.ReadAll(client)
		got <- string(text)
	}()
	conn := NewGuard().Conn(server)
	_, err = io.Copy(conn, struct{ io.Reader }{strings.NewReader("hello")})
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	assert.Equal(t, "hello", <-got)
}

// tells whether it was asked to copy for itself.
type tells struct {
	net.Conn
	asked bool
}

func (c *tells) ReadFrom(r io.Reader) (int64, error) {
	c.asked = true
	return io.Copy(io.Discard, r)
}

func TestGuardScansWithoutAllocating(t *testing.T) {
	b := []byte("POST /a/b HTTP/1.1\r\nHost: web.default:80\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n" +
		"GET http://web.default/ HTTP/1.1\r\nHost: web.default\r\n\r\n")
	s := &guardScan{step: (*guardScan).preface}
	require.Equal(t, len(b), s.scan(b))
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		if s.scan(b) != len(b) {
			t.Error(s.bad)
		}
	}))
}

// What is kept, or allowed without end, has a limit.
func TestGuardLimits(t *testing.T) {
	chunked := "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	long := strings.Repeat("a", 300)
	for text, want := range map[string]GuardReason{
		chunked + "0;" + strings.Repeat("a", extensionMost) + "\r\n\r\n":                          0,
		chunked + "0;" + strings.Repeat("a", extensionMost+1) + "\r\n\r\n":                        BadChunk,
		chunked + strings.Repeat("0", sizeMost) + "\r\n\r\n":                                      0,
		chunked + strings.Repeat("0", sizeMost+1) + "\r\n\r\n":                                    BadChunk,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0000000000000000000\r\n\r\n":               0,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 00000000000000000000\r\n\r\n":              BadLength,
		"GET http://" + long[7:] + "/x HTTP/1.1\r\nHost: " + long[7:] + "\r\n\r\n":                0,
		"GET http://" + long + "/x HTTP/1.1\r\nHost: " + long + "\r\n\r\n":                        BadRequestLine,
		"GET http://a/ HTTP/1.1\r\nHost: " + long + "a\r\n\r\n":                                   BadHost,
		"GET https://a:443/ HTTP/1.1\r\nHost: A\r\n\r\n":                                          0,
		"GET https://a:80/ HTTP/1.1\r\nHost: a\r\n\r\n":                                           HostMismatch,
		"GET other://a:80/ HTTP/1.1\r\nHost: a:80\r\n\r\n":                                        0,
		"GET http://a:80 HTTP/1.0\r\n\r\n":                                                        0,
		"GET http://a\x7f/ HTTP/1.0\r\n\r\n":                                                      ControlByte,
		"GET / HTTP/1.1\r\nHost: a b\r\n\r\n":                                                     BadHost,
		strings.Repeat("M", 1000) + " / HTTP/1.1\r\nHost: a\r\nContent-Length-Content: x\r\n\r\n": 0,
		"CONNECT a:80 HTTP/1.1\r\nContent-Length: 0\r\n\r\n":                                      0,
	} {
		s := &guardScan{step: (*guardScan).preface}
		n := s.scan([]byte(text))
		assert.Equal(t, want, s.bad, text)
		assert.Equal(t, want == 0, n == len(text), text)
	}
}
