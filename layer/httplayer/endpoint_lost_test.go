package httplayer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// faulty is a connection with writes that fail on demand.
type faulty struct {
	net.Conn
	left *atomic.Int64 // bytes that still go through; below 0: all
}

func (c *faulty) Write(p []byte) (int, error) {
	left := c.left.Load()
	if left < 0 {
		return c.Conn.Write(p)
	}
	n, _ := c.Conn.Write(p[:min(int(left), len(p))])
	c.left.Add(-int64(n))
	return n, &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
}

// faults makes connections that fail on demand.
type faults struct {
	made []*faulty
	next error // of the next dial
}

func (f *faults) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if f.next != nil {
		return nil, f.next
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &faulty{conn, new(atomic.Int64)}
	c.left.Store(-1)
	f.made = append(f.made, c)
	return c, nil
}

func (f *faults) breakAll(after int64) {
	for _, c := range f.made {
		c.left.Store(after)
	}
}

// withBody returns a request and its observed body.
func withBody(t testing.TB, text string) (*http.Request, *asked) {
	t.Helper()
	body := &asked{Reader: strings.NewReader(text)}
	req := request(t, http.MethodPost, "http://web/echo", "")
	req.Body, req.ContentLength = body, int64(len(text))
	return req, body
}

func TestEndpointReplacesDeadConnections(t *testing.T) {
	var served atomic.Int32
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		pipe(w, r.Body)
	}))
	// Two idle connections that fail.
	prepare := func(t *testing.T) (*Endpoint, *faults) {
		f := &faults{}
		e := endpoint(t, addr, WithDialContext(f.DialContext))
		var open []*http.Response
		for range 2 {
			rsp, err := e.Call(t.Context(), request(t, "POST", "http://web/", "x"))
			require.NoError(t, err)
			open = append(open, rsp)
		}
		for _, rsp := range open {
			read(t, rsp)
		}
		served.Store(0)
		return e, f
	}
	t.Run("nothing was written", func(t *testing.T) {
		e, f := prepare(t)
		f.breakAll(0)
		req, body := withBody(t, "hello")
		rsp, err := e.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
		assert.EqualValues(t, 1, served.Load())
		assert.Len(t, f.made, 3, "a new connection")
		assert.Positive(t, body.closes.Load())
		assert.Equal(t, 1, e.Describe().State.Get("connections"))
	})
	t.Run("nothing was written, and there is no new connection", func(t *testing.T) {
		e, f := prepare(t)
		f.breakAll(0)
		f.next = syscall.ECONNREFUSED
		req, body := withBody(t, "hello")
		_, err := e.Call(t.Context(), req)
		assert.ErrorIs(t, err, layer.ErrNotReady)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.Zero(t, body.reads.Load()+body.closes.Load(), "a refusal leaves the body alone")
		assert.Zero(t, served.Load())
		assert.Equal(t, 0, e.Describe().State.Get("connections"))
	})
	t.Run("one byte was written", func(t *testing.T) {
		e, f := prepare(t)
		f.breakAll(1)
		req, body := withBody(t, "hello")
		_, err := e.Call(t.Context(), req)
		require.Error(t, err)
		assert.NotErrorIs(t, err, layer.ErrNotReady)
		assert.Len(t, f.made, 2, "it was tried again")
		assert.Positive(t, body.closes.Load())
		status, code := StatusFromError(err)
		assert.Equal(t, http.StatusBadGateway, status)
		assert.EqualValues(t, grpcUnavailable, code)
	})
	t.Run("a request that is not valid", func(t *testing.T) {
		e, f := prepare(t)
		req, body := withBody(t, "hello")
		req.Header.Set("Bad Name", "x")
		_, err := e.Call(t.Context(), req)
		require.Error(t, err)
		assert.NotErrorIs(t, err, layer.ErrNotReady)
		assert.Zero(t, body.reads.Load())
		assert.EqualValues(t, 1, body.closes.Load())
		assert.Len(t, f.made, 2)
		assert.Equal(t, 2, e.Describe().State.Get("idle"), "the connection was not to blame")
	})
}

func TestEndpointNewConnectionLost(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes))
	f := &faults{}
	e := endpoint(t, addr, WithDialContext(func(ctx context.Context, network, a string) (net.Conn, error) {
		conn, err := f.DialContext(ctx, network, a)
		f.breakAll(0)
		return conn, err
	}))
	req, body := withBody(t, "hello")
	_, err := e.Call(t.Context(), req)
	assert.ErrorIs(t, err, layer.ErrNotReady)
	assert.Zero(t, body.reads.Load()+body.closes.Load())
	assert.Len(t, f.made, 1)
	status, _ := StatusFromError(err)
	assert.Equal(t, http.StatusBadGateway, status)
}

func TestEndpointNeverSendsTwice(t *testing.T) {
	// The server takes a second request on a connection that it has answered
	// on, and closes: net/http's Transport would send it again.
	var got atomic.Int32
	addr := rawServer(t, func(n int, conn net.Conn) {
		in := bufio.NewReader(conn)
		for i := range 2 {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			got.Add(1)
			if i == 0 {
				say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
		}
	})
	e := endpoint(t, addr)
	rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
	require.NoError(t, err)
	assert.Equal(t, "ok", read(t, rsp))
	_, err = e.Call(t.Context(), request(t, "GET", "http://web/", ""))
	require.Error(t, err)
	assert.NotErrorIs(t, err, layer.ErrNotReady)
	assert.EqualValues(t, 2, got.Load())
}

// A server may respond before it has received the request, for example because it is overloaded.
func TestEndpointResponseBeforeRequest(t *testing.T) {
	sent := make(chan struct{})
	addr := rawServer(t, func(_ int, conn net.Conn) {
		say(conn, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
		sent <- struct{}{}
		_, _ = io.Copy(io.Discard, conn)
	})
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		<-sent
		return conn, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 20 {
		e := endpoint(t, addr, WithHTTP1(), WithMaxIdleConns(0), WithConnectTimeout(patience), WithDialContext(dial))
		rsp, err := e.Call(ctx, request(t, "GET", "http://web/", ""))
		require.NoError(t, err)
		assert.Equal(t, http.StatusServiceUnavailable, rsp.StatusCode)
		read(t, rsp)
	}
}

func TestEndpointMalformedResponses(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":      "",
		"not HTTP":     "SSH-2.0-OpenSSH\r\n",
		"half a head":  "HTTP/1.1 200 OK\r\nContent-Le",
		"two lengths":  "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
		"upgrade less": "HTTP/1.1 101 Switching\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			addr := rawServer(t, func(_ int, conn net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					say(conn, answer)
				}
			})
			e := endpoint(t, addr)
			rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
			if err == nil {
				_, err = io.ReadAll(rsp.Body)
				rsp.Body.Close()
				if name == "upgrade less" {
					return
				}
			}
			require.Error(t, err)
			assert.NotErrorIs(t, err, layer.ErrNotReady)
			status, _ := StatusFromError(err)
			assert.Equal(t, http.StatusBadGateway, status)
		})
	}
}

func TestEndpointConnectionLostInBody(t *testing.T) {
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		say(w, "half")
		flush(w)
		panic(http.ErrAbortHandler)
	}))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		e := endpoint(t, addr, protocol)
		rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
		require.NoError(t, err)
		got, err := io.ReadAll(rsp.Body)
		assert.Equal(t, "half", string(got))
		assert.Error(t, err)
		assert.NoError(t, rsp.Body.Close())
		require.NoError(t, e.Ready(t.Context()))
		assert.Zero(t, e.Describe().State.Get("in_flight"))
	})
}

// h2Server is a raw HTTP/2 server that has sent its stream limit.
func h2Server(t testing.TB, maxStreams int, handle func(n int, c *rawH2)) (addr string) {
	t.Helper()
	return rawServer(t, func(n int, conn net.Conn) {
		c := newRawH2(conn)
		if c.preface() != nil {
			return
		}
		c.settings(maxStreams)
		handle(n, c)
		c.drain()
	})
}

func TestEndpointH2Rejections(t *testing.T) {
	const internal = 0x2
	for name, tt := range map[string]struct {
		answer  func(c *rawH2, stream uint32)
		refused bool
	}{
		"refused stream":     {func(c *rawH2, s uint32) { c.reset(s, message.CodeRefusedStream) }, true},
		"goaway before it":   {func(c *rawH2, s uint32) { c.goAway(s - 2) }, true},
		"cancelled":          {func(c *rawH2, s uint32) { c.reset(s, message.CodeCancel) }, false},
		"internal error":     {func(c *rawH2, s uint32) { c.reset(s, internal) }, false},
		"goaway and the end": {func(c *rawH2, s uint32) { c.goAway(s); c.Close() }, false},
		"the end":            {func(c *rawH2, s uint32) { c.Close() }, false},
	} {
		addr := func(t *testing.T) string {
			return h2Server(t, 10, func(_ int, c *rawH2) {
				c.respond(c.request(), "the first")
				if s := c.request(); s != 0 {
					tt.answer(c, s)
				}
			})
		}
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, addr(t), WithHTTP2())
			require.NoError(t, get(t.Context(), e, "/"))
			err := get(t.Context(), e, "/")
			require.Error(t, err)
			assert.Equal(t, tt.refused, errors.Is(err, layer.ErrNotReady), "%v", err)
		})
		t.Run(name+", body unread", func(t *testing.T) {
			e := endpoint(t, addr(t), WithHTTP2())
			require.NoError(t, get(t.Context(), e, "/"))
			req, body := withBody(t, "hello")
			req.Header.Set("Expect", "100-continue")
			_, err := e.Call(t.Context(), req)
			require.Error(t, err)
			assert.Equal(t, tt.refused, errors.Is(err, layer.ErrNotReady), "%v", err)
			assert.Zero(t, body.reads.Load())
			assert.Equal(t, tt.refused, body.closes.Load() == 0)
		})
		t.Run(name+", body read", func(t *testing.T) {
			e := endpoint(t, addr(t), WithHTTP2())
			require.NoError(t, get(t.Context(), e, "/"))
			in, out := io.Pipe()
			go out.Write([]byte("x")) // taken at once or at the end
			req := request(t, http.MethodPost, "http://web/", "")
			body := &asked{Reader: in}
			req.Body, req.ContentLength = body, -1
			_, err := e.Call(t.Context(), req)
			require.Error(t, err)
			if body.reads.Load() > 0 {
				assert.NotErrorIs(t, err, layer.ErrNotReady)
			}
			in.Close()
		})
	}
}

func TestEndpointH2GoAwayReconnects(t *testing.T) {
	finish := make(chan struct{})
	var conns atomic.Int32
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	first := make(chan *rawH2, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n := conns.Add(1)
			go func() {
				defer conn.Close()
				c := newRawH2(conn)
				if c.preface() != nil {
					return
				}
				c.settings(1)
				s := c.request()
				if n == 1 {
					first <- c
					<-finish
				}
				c.respond(s, fmt.Sprint("connection ", n))
				c.drain()
			}()
		}
	}()
	e := endpoint(t, l.Addr().String(), WithHTTP2())
	old := make(chan error, 1)
	go func() { old <- get(context.Background(), e, "/") }()
	c := <-first
	assert.ErrorIs(t, get(t.Context(), e, "/"), layer.ErrNotReady, "the one stream is taken")
	// It goes away while it is at its limit: that is not the same as full.
	c.goAway(1)
	require.NoError(t, e.Ready(t.Context()))
	rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
	require.NoError(t, err)
	assert.Equal(t, "connection 2", read(t, rsp))
	assert.Equal(t, 2, e.Describe().State.Get("connections"))
	close(finish)
	assert.NoError(t, <-old, "what was in flight was finished")
}
