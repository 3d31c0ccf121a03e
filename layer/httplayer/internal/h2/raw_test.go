package h2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// peer is the other side of a connection, which reads and writes frames.
type peer struct {
	*http2.Framer
	t  testing.TB
	nc net.Conn
}

func newPeer(t testing.TB, nc net.Conn) *peer {
	t.Helper()
	t.Cleanup(func() { _ = nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(testTimeout)))
	p := &peer{http2.NewFramer(nc, nc), t, nc}
	p.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.AllowIllegalWrites = true
	return p
}

// rawClient connects to a server, and has sent the preface and SETTINGS.
func rawClient(t testing.TB, addr string) *peer {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	return rawClientOn(t, nc)
}

func rawClientOn(t testing.TB, nc net.Conn) *peer {
	t.Helper()
	p := newPeer(t, nc)
	_, err := io.WriteString(nc, http2.ClientPreface)
	require.NoError(t, err)
	require.NoError(t, p.WriteSettings())
	return p
}

// rawServer returns a client connection and the server side of it.
func rawServer(t testing.TB, cfg *ClientConfig, settings ...http2.Setting) (*ClientConn, *peer) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c := dial(t, l.Addr().String(), cfg)
	nc, err := l.Accept()
	require.NoError(t, err)
	p := newPeer(t, nc)
	_, err = io.ReadFull(nc, make([]byte, len(preface)))
	require.NoError(t, err)
	require.NoError(t, p.WriteSettings(settings...))
	<-c.Settled()
	return c, p
}

func (p *peer) headers(id uint32, end bool, fields ...string) {
	p.t.Helper()
	require.NoError(p.t, p.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: block(fields...), EndHeaders: true, EndStream: end,
	}))
}

// block encodes fields "name: value" as literals.
func block(fields ...string) []byte {
	var w bytes.Buffer
	enc := hpack.NewEncoder(&w)
	enc.SetMaxDynamicTableSize(0)
	for _, f := range fields {
		i := strings.Index(f[1:], ":") + 1
		_ = enc.WriteField(hpack.HeaderField{Name: f[:i], Value: strings.TrimPrefix(f[i+1:], " ")})
	}
	return w.Bytes()
}

var get = []string{":method: GET", ":scheme: http", ":path: /", ":authority: host.test"}

func with(fields []string, more ...string) []string {
	return append(slices.Clip(fields), more...)
}

// next returns the next frame of a type, and skips others.
func next[F http2.Frame](p *peer) F {
	p.t.Helper()
	for {
		f, err := p.ReadFrame()
		require.NoError(p.t, err)
		if f, ok := f.(F); ok {
			return f
		}
	}
}

// ended returns the GOAWAY after which the connection ended.
func (p *peer) ended() (last *http2.GoAwayFrame, debug string) {
	p.t.Helper()
	for {
		f, err := p.ReadFrame()
		if err != nil {
			return last, debug
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			copied := *g
			last, debug = &copied, string(g.DebugData())
		}
	}
}

func TestServerRequestHeaders(t *testing.T) {
	reqs := make(chan *http.Request, 1)
	addr := serve(t, message.ServerConfig{Exchange: func(req *http.Request) (*http.Response, error) {
		reqs <- req
		return &http.Response{StatusCode: 204}, nil
	}}).addr
	for name, tt := range map[string]struct {
		fields []string
		reset  bool
		host   string
		uri    string
		check  func(t *testing.T, req *http.Request)
	}{
		"plain":       {fields: get, host: "host.test", uri: "/"},
		"escaped":     {fields: with(get[:2], ":path: /a%20b/%2f?x=1%20", ":authority: h"), host: "h", uri: "/a%20b/%2f?x=1%20"},
		"star":        {fields: []string{":method: OPTIONS", ":scheme: http", ":path: *", ":authority: h"}, host: "h", uri: "*"},
		"star of GET": {fields: []string{":method: GET", ":scheme: http", ":path: *", ":authority: h"}, reset: true},
		"host only":   {fields: with(get[:3], "host: other.test"), host: "other.test", uri: "/"},
		"both hosts": {fields: with(get, "host: host.test"), host: "host.test", uri: "/", check: func(t *testing.T, req *http.Request) {
			assert.Equal(t, []string{"host.test"}, req.Header["Host"])
		}},
		"other host":        {fields: with(get, "host: other.test"), reset: true},
		"two hosts":         {fields: with(get[:3], "host: a", "host: a"), reset: true},
		"no path":           {fields: []string{":method: GET", ":scheme: http", ":authority: h"}, reset: true},
		"empty path":        {fields: with(get[:2], ":path:", ":authority: h"), reset: true},
		"relative path":     {fields: with(get[:2], ":path: a", ":authority: h"), reset: true},
		"path with space":   {fields: with(get[:2], ":path: /a b", ":authority: h"), reset: true},
		"path with control": {fields: with(get[:2], ":path: /a\x01", ":authority: h"), reset: true},
		"bad escape":        {fields: with(get[:2], ":path: /%zz", ":authority: h"), reset: true},
		"bad method":        {fields: []string{":method: G T", ":scheme: http", ":path: /", ":authority: h"}, reset: true},
		"bad scheme":        {fields: []string{":method: GET", ":scheme: ftp", ":path: /", ":authority: h"}, reset: true},
		"two methods":       {fields: with(get, ":method: GET"), reset: true},
		"unknown pseudo":    {fields: with(get, ":x: 1"), reset: true},
		"late pseudo":       {fields: []string{":method: GET", "a: b", ":scheme: http", ":path: /"}, reset: true},
		"connection":        {fields: with(get, "connection: close"), reset: true},
		"te":                {fields: with(get, "te: gzip"), reset: true},
		"te trailers":       {fields: with(get, "te: trailers"), host: "host.test", uri: "/"},
		"bad length":        {fields: with(get, "content-length: +1"), reset: true},
		"two lengths":       {fields: with(get, "content-length: 0", "content-length: 0"), reset: true},
		"length, no body":   {fields: with(get, "content-length: 1"), reset: true},
		"upper-case":        {fields: with(get, "Upper: 1"), reset: true},
		"bad value":         {fields: with(get, "a: b\rc"), reset: true},
		"cookies": {fields: with(get, "cookie: a=1", "cookie: b=2"), host: "host.test", uri: "/", check: func(t *testing.T, req *http.Request) {
			assert.Equal(t, []string{"a=1; b=2"}, req.Header["Cookie"])
		}},
		"connect": {fields: []string{":method: CONNECT", ":authority: h:80"}, host: "h:80", uri: "h:80", check: func(t *testing.T, req *http.Request) {
			assert.Equal(t, "h:80", req.URL.Host)
		}},
		"connect with path": {fields: []string{":method: CONNECT", ":authority: h:80", ":path: /"}, reset: true},
		"extended connect": {fields: []string{":method: CONNECT", ":authority: h", ":path: /x", ":scheme: http", ":protocol: websocket"}, host: "h", uri: "/x", check: func(t *testing.T, req *http.Request) {
			assert.Equal(t, http.MethodGet, req.Method)
			assert.Equal(t, []string{"websocket"}, req.Header["Upgrade"])
		}},
		"other protocol": {fields: []string{":method: CONNECT", ":authority: h", ":path: /x", ":scheme: http", ":protocol: other"}, host: "h", uri: "/x", check: func(t *testing.T, req *http.Request) {
			assert.Equal(t, []string{"other"}, req.Header[":protocol"])
		}},
		"protocol of GET": {fields: with(get, ":protocol: websocket"), reset: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := rawClient(t, addr)
			p.headers(1, true, tt.fields...)
			if tt.reset {
				assert.Equal(t, http2.ErrCodeProtocol, next[*http2.RSTStreamFrame](p).ErrCode)
				assert.Empty(t, reqs)
				return
			}
			want := "204"
			if name == "extended connect" {
				want = "502" // the client would take a 2xx as a WebSocket
			}
			f := next[*http2.MetaHeadersFrame](p)
			assert.Equal(t, want, f.PseudoValue("status"))
			req := <-reqs
			assert.Equal(t, tt.host, req.Host)
			assert.Equal(t, tt.uri, req.RequestURI)
			if tt.check != nil {
				tt.check(t, req)
			}
		})
	}
}

func TestServerLargeHeaders(t *testing.T) {
	addr := serve(t, message.ServerConfig{Exchange: handledBy(handler()), MaxHeaderBytes: 4 << 10}).addr
	p := rawClient(t, addr)
	p.headers(1, true, with(get, "x: "+strings.Repeat("a", 5<<10))...)
	f := next[*http2.MetaHeadersFrame](p)
	assert.Equal(t, "431", f.PseudoValue("status"))
	assert.True(t, f.StreamEnded())
	p.headers(3, true, with(get[:2], ":path: /length", ":authority: h")...)
	assert.Equal(t, "200", next[*http2.MetaHeadersFrame](p).PseudoValue("status"))
}

func TestServerResetCodes(t *testing.T) {
	causes := make(chan error, 1)
	addr := serve(t, message.ServerConfig{Exchange: func(req *http.Request) (*http.Response, error) {
		if req.URL.Path == "/fail" {
			return nil, &message.ResetError{Code: message.CodeEnhanceYourCalm, Remote: true}
		}
		<-req.Context().Done()
		causes <- context.Cause(req.Context())
		return nil, context.Cause(req.Context())
	}}).addr
	p := rawClient(t, addr)
	p.headers(1, true, with(get[:2], ":path: /fail", ":authority: h")...)
	assert.Equal(t, http2.ErrCodeEnhanceYourCalm, next[*http2.RSTStreamFrame](p).ErrCode)
	p.headers(3, true, get...)
	time.Sleep(5 * time.Millisecond)
	require.NoError(t, p.WriteRSTStream(3, http2.ErrCodeRefusedStream))
	cause := <-causes
	require.ErrorIs(t, cause, context.Canceled)
	canceled, ok := errors.AsType[*message.CanceledError](cause)
	require.True(t, ok)
	assert.Equal(t, message.CodeRefusedStream, canceled.Code)
}

// TestProxyResetCodes passes codes in both directions.
func TestProxyResetCodes(t *testing.T) {
	c, up := rawServer(t, &ClientConfig{})
	down := rawClient(t, serve(t, message.ServerConfig{Exchange: transport{c}.RoundTrip}).addr)
	down.headers(1, true, get...)
	next[*http2.MetaHeadersFrame](up)
	require.NoError(t, down.WriteRSTStream(1, http2.ErrCodeInternal))
	assert.Equal(t, http2.ErrCodeInternal, next[*http2.RSTStreamFrame](up).ErrCode)

	down.headers(3, true, get...)
	id := next[*http2.MetaHeadersFrame](up).StreamID
	require.NoError(t, up.WriteRSTStream(id, http2.ErrCodeFlowControl))
	assert.Equal(t, http2.ErrCodeFlowControl, next[*http2.RSTStreamFrame](down).ErrCode)

	down.headers(5, true, get...)
	id = next[*http2.MetaHeadersFrame](up).StreamID
	up.headers(id, false, ":status: 200")
	next[*http2.MetaHeadersFrame](down)
	require.NoError(t, up.WriteRSTStream(id, http2.ErrCodeStreamClosed))
	assert.Equal(t, http2.ErrCodeStreamClosed, next[*http2.RSTStreamFrame](down).ErrCode)
	eventually(t, func() bool { return c.Active() == 0 }, "all slots are free")
}

// TestClientHostField looks at the block on the wire.
func TestClientHostField(t *testing.T) {
	c, up := rawServer(t, &ClientConfig{})
	send := func(header http.Header) *http2.MetaHeadersFrame {
		req := request(t, "GET", "host.test", "/", nil)
		req.Header = header
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		go func() { _, _ = transport{c}.RoundTrip(req.WithContext(ctx)) }()
		return next[*http2.MetaHeadersFrame](up)
	}
	f := send(http.Header{"Host": {"host.test"}})
	assert.Equal(t, "host.test", f.PseudoValue("authority"))
	assert.Equal(t, []hpack.HeaderField{{Name: "host", Value: "host.test"}}, f.RegularFields())
	f = send(http.Header{"Connection": {"close"}, "Te": {"gzip"}, "Upgrade": {"x"}})
	assert.Empty(t, f.RegularFields())
	f = send(http.Header{"Te": {"trailers"}})
	assert.Equal(t, []hpack.HeaderField{{Name: "te", Value: "trailers"}}, f.RegularFields())
	eventually(t, func() bool { return c.Active() == 0 }, "all slots are free")
}

func TestServerEarlyResponse(t *testing.T) {
	addr := serve(t, message.ServerConfig{Exchange: handledBy(handler())}).addr
	p := rawClient(t, addr)
	p.headers(1, false, ":method: POST", ":scheme: http", ":path: /early", ":authority: h")
	require.NoError(t, p.WriteData(1, false, make([]byte, 1000)))
	next[*http2.MetaHeadersFrame](p)
	assert.Equal(t, http2.ErrCodeNo, next[*http2.RSTStreamFrame](p).ErrCode)
	for range 100 { // in flight: not an error, and the window of the connection is given back
		require.NoError(t, p.WriteData(1, false, make([]byte, 10000)))
	}
	p.headers(3, true, with(get[:2], ":path: /length", ":authority: h")...)
	for {
		f, err := p.ReadFrame()
		require.NoError(t, err)
		switch f := f.(type) {
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			t.Fatalf("unexpected %v", f)
		case *http2.MetaHeadersFrame:
			return
		}
	}
}

func TestServerDrainInTwoSteps(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, message.ServerConfig{Exchange: handled(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			<-release
		}
	})})
	p := rawClient(t, s.addr)
	p.headers(1, true, with(get[:2], ":path: /wait", ":authority: h")...)
	next[*http2.SettingsFrame](p)
	eventually(t, func() bool { return len(s.open()) == 1 }, "a connection")
	s.open()[0].Drain()
	assert.EqualValues(t, maxStreamID, next[*http2.GoAwayFrame](p).LastStreamID)
	ping := next[*http2.PingFrame](p)
	p.headers(3, true, get...) // was sent before the client knew
	next[*http2.MetaHeadersFrame](p)
	require.NoError(t, p.WritePing(true, ping.Data))
	assert.EqualValues(t, 3, next[*http2.GoAwayFrame](p).LastStreamID)
	p.headers(5, false, get...) // is ignored
	require.NoError(t, p.WriteData(5, true, []byte("x")))
	close(release)
	assert.EqualValues(t, 1, next[*http2.MetaHeadersFrame](p).StreamID)
	last, _ := p.ended()
	assert.Nil(t, last)
	require.NoError(t, p.nc.Close())
	eventually(t, func() bool { return len(s.open()) == 0 }, "the connection has ended")
}

func TestServerTimeouts(t *testing.T) {
	const limit = 60 * time.Millisecond
	for name, tt := range map[string]struct {
		cfg  message.ServerConfig
		do   func(p *peer)
		code http2.ErrCode
	}{
		"idle after preface": {message.ServerConfig{IdleTimeout: limit}, func(*peer) {}, http2.ErrCodeNo},
		"idle after request": {message.ServerConfig{IdleTimeout: limit}, func(p *peer) {
			p.headers(1, true, get...)
			next[*http2.MetaHeadersFrame](p)
		}, http2.ErrCodeNo},
		"header block": {message.ServerConfig{HeaderTimeout: limit}, func(p *peer) {
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(get...)})
		}, http2.ErrCodeEnhanceYourCalm},
		"part of HEADERS": {message.ServerConfig{HeaderTimeout: limit}, func(p *peer) {
			_, _ = p.nc.Write(appendFrame(nil, 100, frameHeaders, flagEndHeaders, 1))
		}, http2.ErrCodeEnhanceYourCalm},
		"no PING ack": {message.ServerConfig{PingInterval: limit, PingTimeout: limit}, func(*peer) {}, 0xff},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.cfg.Exchange, tt.cfg.DrainTimeout = handled(func(http.ResponseWriter, *http.Request) {}), limit
				p := rawClientOn(t, serveInMemory(t, tt.cfg))
				tt.do(p)
				begin := time.Now()
				last, _ := p.ended()
				if tt.code == 0xff {
					assert.InDelta(t, 2*limit, time.Since(begin), float64(3*sweep.Interval))
					assert.Nil(t, last)
				} else if assert.NotNil(t, last) {
					assert.InDelta(t, limit, time.Since(begin), float64(3*sweep.Interval))
					assert.Equal(t, tt.code, last.ErrCode)
				}
			})
		})
	}
	t.Run("no preface", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t, serveInMemory(t, message.ServerConfig{HeaderTimeout: limit, Exchange: handledBy(handler())}))
			last, _ := p.ended()
			assert.NotNil(t, last)
		})
	})
}

func TestServerSlowBody(t *testing.T) {
	for name, cfg := range map[string]message.ServerConfig{
		"idle": {BodyIdle: 60 * time.Millisecond},
		"rate": {BodyIdle: time.Second, MinBodyRate: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				errs := make(chan error, 1)
				cfg.Exchange = handled(func(w http.ResponseWriter, r *http.Request) {
					_, err := io.Copy(io.Discard, r.Body)
					errs <- err
					w.WriteHeader(http.StatusRequestTimeout)
				})
				p := rawClientOn(t, serveInMemory(t, cfg))
				p.headers(1, false, with(get, "content-length: 1000")...)
				var writer sync.WaitGroup
				writer.Go(func() {
					for p.WriteData(1, false, []byte("x")) == nil && name != "idle" {
						time.Sleep(20 * time.Millisecond)
					}
				})
				assert.Equal(t, "408", next[*http2.MetaHeadersFrame](p).PseudoValue("status"))
				assert.ErrorIs(t, <-errs, message.ErrSlowBody)
				_ = p.nc.Close()
				writer.Wait()
			})
		})
	}
}

func TestServerWriteTimeout(t *testing.T) {
	t.Parallel()
	errs := make(chan error, 200)
	addr := serve(t, message.ServerConfig{
		WriteTimeout: 100 * time.Millisecond,
		Exchange: handled(func(w http.ResponseWriter, _ *http.Request) {
			_, err := w.Write(make([]byte, 1<<20))
			errs <- err
		}),
	}).addr
	t.Run("no window", func(t *testing.T) {
		p := rawClient(t, addr)
		p.headers(1, true, get...)
		assert.Equal(t, http2.ErrCodeCancel, next[*http2.RSTStreamFrame](p).ErrCode)
		assert.Error(t, <-errs)
	})
	t.Run("no reads", func(t *testing.T) {
		p := rawClient(t, addr)
		require.NoError(t, p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow}))
		require.NoError(t, p.WriteWindowUpdate(0, maxWindow-defaultWindow))
		for i := range uint32(100) { // a slow machine may close the connection before the last one
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block(get...), EndHeaders: true, EndStream: true})
		}
		for err := range errs { // those of the first responses are nil, because the kernel has room
			if err != nil {
				return
			}
		}
	})
}

func TestServerDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errs := make(chan error, 2)
		p := rawClientOn(t, serveInMemory(t, message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(w)
			_ = rc.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			_, err := r.Body.Read(make([]byte, 1))
			errs <- err
			_ = rc.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			_, err = w.Write(make([]byte, 1<<20))
			errs <- err
		})}))
		p.headers(1, false, get...)
		assert.ErrorIs(t, <-errs, os.ErrDeadlineExceeded)
		assert.ErrorIs(t, <-errs, os.ErrDeadlineExceeded)
		require.NoError(t, errors.Join(p.WriteWindowUpdate(1, 1<<20), p.WriteWindowUpdate(0, 1<<20)))
		assert.Equal(t, http2.ErrCodeInternal, next[*http2.RSTStreamFrame](p).ErrCode)
	})
}

func TestServerEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	a, b := net.Pipe()
	ended := make(chan error, 1)
	s := serve(t, message.ServerConfig{Exchange: handledBy(handler())})
	c := NewServerConn(ctx, a, &s.cfg)
	served := make(chan error, 1)
	go func() { served <- c.Serve() }()
	client := NewClientConn(b, &ClientConfig{})
	go func() {
		_, err := transport{client}.RoundTrip(request(t, "GET", "h", "/hang", nil))
		ended <- err
	}()
	eventually(t, func() bool { return client.Active() == 1 }, "a stream")
	cancel()
	require.Error(t, <-ended)
	require.Error(t, <-served)
	<-client.Done()
}

type panicking struct{}

func (panicking) Read([]byte) (int, error) { panic("odd") }

func TestClientErrors(t *testing.T) {
	send := func(c *ClientConn) chan error {
		errs := make(chan error, 1)
		req := request(t, "GET", "h", "/", nil)
		go func() {
			rsp, err := transport{c}.RoundTrip(req)
			if err == nil {
				_, err = io.Copy(io.Discard, rsp.Body)
				_ = rsp.Body.Close()
			}
			errs <- err
		}()
		return errs
	}
	t.Run("refused", func(t *testing.T) {
		c, up := rawServer(t, &ClientConfig{})
		errs := send(c)
		id := next[*http2.MetaHeadersFrame](up).StreamID
		require.NoError(t, up.WriteRSTStream(id, http2.ErrCodeRefusedStream))
		require.ErrorIs(t, <-errs, message.ErrNotProcessed)
	})
	t.Run("GOAWAY", func(t *testing.T) {
		c, up := rawServer(t, &ClientConfig{})
		first := send(c)
		next[*http2.MetaHeadersFrame](up)
		second := send(c)
		next[*http2.MetaHeadersFrame](up)
		require.True(t, c.Reserve())
		require.True(t, c.Reserve())
		require.NoError(t, up.WriteGoAway(1, http2.ErrCodeNo, nil))
		require.ErrorIs(t, <-second, message.ErrNotProcessed)
		assert.False(t, c.Usable())
		assert.False(t, c.Reserve())
		_, err := c.RoundTrip(request(t, "GET", "h", "/", nil))
		require.ErrorIs(t, err, message.ErrNotSent)
		body := new(unaryBody) // it can be read at once, but must stay unread
		body.Reset([]byte("x"))
		_, err = c.RoundTrip(request(t, "POST", "h", "/", body))
		require.ErrorIs(t, err, message.ErrNotSent)
		assert.Equal(t, 1, body.Len())
		up.headers(1, true, ":status: 200")
		require.NoError(t, <-first)
		<-c.Done()
	})
	t.Run("panic of the body", func(t *testing.T) {
		c, up := rawServer(t, &ClientConfig{})
		require.True(t, c.Reserve())
		_, err := c.RoundTrip(request(t, "POST", "h", "/", panicking{}))
		require.ErrorContains(t, err, "odd")
		assert.Equal(t, http2.ErrCodeInternal, next[*http2.RSTStreamFrame](up).ErrCode)
		assert.Zero(t, c.Active())
		assert.True(t, c.Usable())
	})
	t.Run("calm", func(t *testing.T) {
		c, up := rawServer(t, &ClientConfig{})
		errs := send(c)
		next[*http2.MetaHeadersFrame](up)
		require.NoError(t, up.WriteGoAway(1, http2.ErrCodeEnhanceYourCalm, []byte("too_many_pings")))
		require.NoError(t, up.nc.Close())
		gone, ok := errors.AsType[*ConnError](<-errs)
		require.True(t, ok)
		assert.Equal(t, ConnError{message.CodeEnhanceYourCalm, true, "too_many_pings"}, *gone)
		<-c.Done()
		assert.Equal(t, gone, c.Err())
	})
	t.Run("connection lost in a body", func(t *testing.T) {
		c, up := rawServer(t, &ClientConfig{})
		errs := send(c)
		next[*http2.MetaHeadersFrame](up)
		up.headers(1, false, ":status: 200")
		require.NoError(t, up.nc.Close())
		require.ErrorIs(t, <-errs, io.ErrUnexpectedEOF)
	})
	t.Run("invalid SETTINGS", func(t *testing.T) {
		nc, there := net.Pipe()
		c := NewClientConn(nc, &ClientConfig{})
		p := newPeer(t, there)
		go io.Copy(io.Discard, there)
		require.NoError(t, p.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 1}))
		<-c.Done()
		require.ErrorContains(t, c.Err(), "ENABLE_PUSH")
	})
	t.Run("no answer to a PING", func(t *testing.T) {
		c, up := rawServer(t, &ClientConfig{PingInterval: 30 * time.Millisecond, PingTimeout: 30 * time.Millisecond})
		errs := send(c)
		next[*http2.PingFrame](up)
		require.ErrorIs(t, <-errs, errPingTimeout)
	})
	for name, fields := range map[string][]string{
		"no status":      {"a: b"},
		"bad status":     {":status: 0x0"},
		"101":            {":status: 101"},
		"two status":     {":status: 200", ":status: 200"},
		"request pseudo": {":status: 200", ":path: /"},
		"connection":     {":status: 200", "connection: close"},
		"upper-case":     {":status: 200", "Upper: x"},
		"bad value":      {":status: 200", "a: \x00"},
		"bad length":     {":status: 200", "content-length: x"},
		"no body":        {":status: 200", "content-length: 3"},
	} {
		t.Run(name, func(t *testing.T) {
			c, up := rawServer(t, &ClientConfig{})
			errs := send(c)
			next[*http2.MetaHeadersFrame](up)
			up.headers(1, true, fields...)
			reset, ok := errors.AsType[*message.ResetError](<-errs)
			require.True(t, ok)
			assert.Equal(t, message.CodeProtocol, reset.Code)
			assert.Equal(t, http2.ErrCodeProtocol, next[*http2.RSTStreamFrame](up).ErrCode)
			assert.True(t, c.Usable())
			assert.Zero(t, c.Active())
		})
	}
}

func TestClientLimitAndChanged(t *testing.T) {
	changed := make(chan struct{}, 100)
	c, up := rawServer(t, &ClientConfig{Changed: func(*ClientConn) { changed <- struct{}{} }},
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	<-changed
	assert.Equal(t, 1, c.Limit())
	require.True(t, c.Reserve())
	assert.False(t, c.Reserve())
	for len(changed) > 0 {
		<-changed
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.RoundTrip(request(t, "GET", "h", "/", nil))
		done <- err
	}()
	next[*http2.MetaHeadersFrame](up)
	up.headers(1, true, ":status: 204")
	require.NoError(t, <-done)
	<-changed
	assert.True(t, c.Reserve())
	c.Release()
	c.Drain()
	<-c.Done()
	<-changed
	assert.False(t, c.Usable())
}

// A request whose slot was reserved before Drain is not lost, because its body is unread.
func TestClientDrainReservedSlot(t *testing.T) {
	addr := standard(t, handler())
	c := dial(t, addr, &ClientConfig{})
	require.True(t, c.Reserve())
	c.Drain()
	body := new(unaryBody)
	body.Reset([]byte("x"))
	_, err := c.RoundTrip(request(t, "POST", addr, "/echo", body))
	require.ErrorIs(t, err, message.ErrNotSent)
	assert.Equal(t, 1, body.Len())
	<-c.Done()
}

func TestServerDrainAtOnce(t *testing.T) {
	nc, c := servePipe(t, message.ServerConfig{Exchange: handledBy(handler())})
	p := rawClientOn(t, nc)
	next[*http2.SettingsFrame](p)
	c.Drain()
	assert.EqualValues(t, maxStreamID, next[*http2.GoAwayFrame](p).LastStreamID)
	assert.Zero(t, next[*http2.GoAwayFrame](p).LastStreamID)
	last, _ := p.ended()
	assert.Nil(t, last)
}

// TestTunnel uses CONNECT and extended CONNECT. The tunnel of the exchange is one
// end of a TCP connection.
func TestTunnel(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	peers := make(chan *net.TCPConn, 1)
	addr := serve(t, message.ServerConfig{Exchange: func(req *http.Request) (*http.Response, error) {
		to, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return nil, err
		}
		peer, err := l.Accept()
		if err != nil {
			return nil, err
		}
		peers <- peer.(*net.TCPConn)
		return &http.Response{StatusCode: 200, Body: to}, nil
	}}).addr
	for name, more := range map[string][]string{"connect": nil, "extended": {":path: /", ":scheme: http", ":protocol: other"}} {
		t.Run(name, func(t *testing.T) {
			p := rawClient(t, addr)
			fields := with([]string{":method: CONNECT", ":authority: target.test:80"}, more...)
			p.headers(1, false, fields...)
			f := next[*http2.MetaHeadersFrame](p)
			assert.Equal(t, "200", f.PseudoValue("status"))
			assert.False(t, f.StreamEnded())
			server := <-peers
			defer server.Close()
			for i := range 10 {
				text := strings.Repeat("t", i*1000+1)
				require.NoError(t, p.WriteData(1, false, []byte(text)))
				got := make([]byte, len(text))
				_, err = io.ReadFull(server, got)
				require.NoError(t, err)
				assert.Equal(t, text, string(got))
				_, err = server.Write(got)
				require.NoError(t, err)
				for n := 0; n < len(text); {
					n += len(next[*http2.DataFrame](p).Data())
				}
			}
			require.NoError(t, p.WriteData(1, true, nil)) // ends one direction
			_, err = server.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			_, err = io.WriteString(server, "end")
			require.NoError(t, err)
			require.NoError(t, server.CloseWrite())
			rest := ""
			for ended := false; !ended; {
				f := next[*http2.DataFrame](p)
				rest, ended = rest+string(f.Data()), f.StreamEnded()
			}
			assert.Equal(t, "end", rest)

			p.headers(3, false, fields...)
			next[*http2.MetaHeadersFrame](p)
			server = <-peers
			defer server.Close()
			require.NoError(t, p.WriteRSTStream(3, http2.ErrCodeCancel)) // ends both directions
			_, err = server.Read(make([]byte, 1))
			require.Error(t, err)
		})
	}
}

func TestServerIdleMemory(t *testing.T) {
	t.Parallel()
	s := serve(t, message.ServerConfig{Exchange: handledBy(handler())})
	p := rawClient(t, s.addr)
	for i := range uint32(40) {
		p.headers(2*i+1, true, with(get[:2], ":path: /length", ":authority: h", "x: "+strings.Repeat("x", 3000))...)
	}
	for range 40 {
		next[*http2.MetaHeadersFrame](p)
	}
	c := s.open()[0]
	eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.idle == nil && c.out == nil && !c.writing
	}, "workers and buffers are released")
	p.headers(101, true, with(get[:2], ":path: /length", ":authority: h")...)
	assert.Equal(t, "200", next[*http2.MetaHeadersFrame](p).PseudoValue("status"))
}

// The timer of a drain does not keep connections in memory. The runtime may keep some stopped timers
// until other timers expire.
func TestServerDrainMemory(t *testing.T) {
	var conns []weak.Pointer[ServerConn]
	for range 50 {
		s := serve(t, message.ServerConfig{Exchange: handledBy(handler()), DrainTimeout: 24 * time.Hour})
		p := rawClient(t, s.addr)
		next[*http2.SettingsFrame](p)
		s.open()[0].Drain()
		conns = append(conns, weak.Make(s.open()[0]))
		next[*http2.GoAwayFrame](p)
		require.NoError(t, p.nc.Close())
	}
	eventually(t, func() bool {
		runtime.GC()
		return slices.ContainsFunc(conns, func(c weak.Pointer[ServerConn]) bool { return c.Value() == nil })
	}, "connections are freed")
}

func TestServerSettings(t *testing.T) {
	p := rawClient(t, serve(t, message.ServerConfig{Exchange: handledBy(handler())}).addr)
	extended, _ := next[*http2.SettingsFrame](p).Value(http2.SettingEnableConnectProtocol)
	assert.Equal(t, uint32(1), extended)
}
