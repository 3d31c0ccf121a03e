package httplayer

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// handing is a listener that passes its first connections to the functions in first.
type handing struct {
	net.Listener
	first []func(net.Conn) // the others are accepted
}

func (l *handing) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || len(l.first) == 0 {
			return conn, err
		}
		l.first[0](conn)
		l.first = l.first[1:]
	}
}

// serveAfter is serve, but the given functions receive the first connections.
func serveAfter(t *testing.T, h http.Handler, h1 bool, first ...func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveOn(t, &handing{l, first}, h, func(s *http.Server) { s.Protocols.SetHTTP1(h1) })
	return l.Addr().String()
}

func hangUpOn(c net.Conn) { c.Close() }

// answering answers one request, and closes.
func answering(answer string) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		in := bufio.NewReader(c)
		for {
			if line, err := in.ReadString('\n'); err != nil || strings.TrimSpace(line) == "" {
				break
			}
		}
		say(c, answer)
		// Closed with bytes unread it would be reset, and the answer lost.
		if half, ok := c.(halfCloser); ok && half.CloseWrite() == nil {
			_, _ = io.Copy(io.Discard, in)
		}
	}
}

// byTwo is a request that came by HTTP/2.
func byTwo(t *testing.T, grpc bool) (*http.Request, *asked) {
	t.Helper()
	req, body := withBody(t, "hello")
	req.ProtoMajor = 2
	if grpc {
		req.Header.Set("Content-Type", "application/grpc")
	}
	return req, body
}

func readyWithin(t *testing.T, svc Service) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, svc.Ready(ctx))
}

// A connection that ends before SETTINGS does not prove that the server lacks HTTP/2,
// because the server may be restarting.
func TestEndpointConnectionEndsBeforeSettings(t *testing.T) {
	t.Parallel()
	for name, h1 := range map[string]bool{"h2 only": false, "both": true} {
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, serveAfter(t, http.HandlerFunc(shapes), h1, hangUpOn), WithKeepVersion(), WithConnectTimeout(patience))
			req, body := byTwo(t, false)
			_, err := e.Call(t.Context(), req)
			require.ErrorIs(t, err, layer.ErrNotReady)
			assert.NotErrorIs(t, err, errNotH2)
			assert.Zero(t, body.reads.Load()+body.closes.Load(), "a refusal leaves the body alone")
			assert.Equal(t, "down", e.Describe().State.Get("link"))
			for range 2 {
				readyWithin(t, e)
				rsp, err := e.Call(t.Context(), req)
				require.NoError(t, err)
				assert.Equal(t, 2, rsp.ProtoMajor)
				read(t, rsp)
				req, _ = byTwo(t, false)
			}
		})
	}
}

// A load balancer that closes each connection at once is an address that cannot be reached for gRPC,
// with and without WithHTTP2.
func TestEndpointGRPCConnectionEndsEarly(t *testing.T) {
	addr := rawServer(t, func(int, net.Conn) {})
	for name, opts := range map[string][]EndpointOption{"auto": nil, "h2": {WithHTTP2()}} {
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, addr, append(opts, WithConnectTimeout(patience))...)
			req, body := byTwo(t, true)
			_, err := e.Call(t.Context(), req)
			require.ErrorIs(t, err, layer.ErrNotReady)
			assert.NotErrorIs(t, err, errNotH2)
			assert.Zero(t, body.reads.Load()+body.closes.Load())
			assert.Equal(t, "down", e.Describe().State.Get("link"))
		})
	}
}

// A server that ends a new connection by a GOAWAY with an error supports HTTP/2. The request is rejected
// with that error and is not sent over HTTP/1.1.
func TestEndpointGoAwayAtStart(t *testing.T) {
	addr := rawServer(t, func(_ int, conn net.Conn) {
		_ = conn.SetDeadline(time.Now().Add(patience))
		c := newRawH2(conn)
		c.settings(10)
		c.frame(frameGoAway, 0, 0, []byte{0, 0, 0, 0, 0, 0, 0, byte(message.CodeEnhanceYourCalm)})
		assert.NoError(t, conn.(*net.TCPConn).CloseWrite())
		c.drain()
	})
	for range 20 { // the connection may end before or after its SETTINGS are noticed
		e := endpoint(t, addr, WithKeepVersion(), WithConnectTimeout(patience))
		req := request(t, "GET", "http://web/", "")
		req.ProtoMajor = 2
		_, err := e.Call(t.Context(), req)
		require.ErrorIs(t, err, layer.ErrNotReady)
		assert.False(t, e.onlyH1.Load())
	}
}

// The detected protocol of a server is forgotten after a sign of another server.
func TestEndpointForgetsProtocol(t *testing.T) {
	const no, yes = "HTTP/1.1 505 No\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
	e := endpoint(t, serveAfter(t, http.HandlerFunc(shapes), false, answering(no), answering(yes), hangUpOn), WithKeepVersion(), WithConnectTimeout(patience))
	call := func() (*http.Response, error) {
		req, _ := byTwo(t, false)
		return e.Call(t.Context(), req)
	}
	rsp, err := call()
	require.NoError(t, err)
	assert.Equal(t, 1, rsp.ProtoMajor)
	read(t, rsp)
	assert.True(t, e.onlyH1.Load())
	_, err = call()
	require.Error(t, err, "it is gone")
	readyWithin(t, e)
	rsp, err = call()
	require.NoError(t, err)
	assert.Equal(t, 2, rsp.ProtoMajor, "another one has taken its place")
	read(t, rsp)

	e.onlyH1.Store(true)
	e.opts.dial = func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrUnexpectedEOF }
	require.ErrorIs(t, get(t.Context(), e, "/"), layer.ErrNotReady)
	assert.False(t, e.onlyH1.Load(), "nor is there one to be had")
}

// A server ends every HTTP/2 connection before SETTINGS. Requests over HTTP/1.1 must not be
// rejected because of this.
func TestEndpointReadyForOtherProtocol(t *testing.T) {
	addr := rawServer(t, func(_ int, conn net.Conn) {
		_ = conn.SetDeadline(time.Now().Add(patience))
		req, err := http.ReadRequest(bufio.NewReader(conn))
		if err == nil && req.Method != "PRI" {
			say(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		}
	})
	e := endpoint(t, addr, WithKeepVersion(), WithConnectTimeout(patience))
	require.NoError(t, get(t.Context(), e, "/"))
	req, _ := byTwo(t, false)
	_, err := e.Call(t.Context(), req)
	require.ErrorIs(t, err, layer.ErrNotReady)
	readyWithin(t, e)
	require.NoError(t, get(t.Context(), e, "/"))

	// And the other way round.
	e.opts.dial = func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrUnexpectedEOF }
	require.ErrorIs(t, get(t.Context(), e, "/"), layer.ErrNotReady)
	assert.True(t, e.probesH2())
}

// With TLS the handshake selects the protocol.
func TestEndpointTLSServerWithoutH2(t *testing.T) {
	srv := tlsServer(t, false)
	trusting := srv.Client().Transport.(*http.Transport).TLSClientConfig
	quiet, err := net.Listen("tcp", "127.0.0.1:0") // knows nothing of ALPN
	require.NoError(t, err)
	serveOn(t, tls.NewListener(quiet, &tls.Config{Certificates: srv.TLS.Certificates, MinVersion: tls.VersionTLS12}),
		http.HandlerFunc(shapes))
	for name, addr := range map[string]string{"refuses": srv.Listener.Addr().String(), "says nothing": quiet.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, addr, WithTLS(trusting), WithConnectTimeout(patience))
			req, body := byTwo(t, true)
			_, err := e.Call(t.Context(), req)
			require.ErrorIs(t, err, errNotH2)
			assert.NotErrorIs(t, err, layer.ErrNotReady, "it can do nothing for gRPC, ever")
			assert.EqualValues(t, 1, body.closes.Load())
			for range 2 {
				require.NoError(t, layer.Poll(e))
				req, _ = byTwo(t, false)
				rsp, err := e.Call(t.Context(), req)
				require.NoError(t, err)
				assert.Equal(t, 1, rsp.ProtoMajor)
				read(t, rsp)
				require.NoError(t, get(t.Context(), e, "/length"))
			}
			assert.Equal(t, "up", e.Describe().State.Get("link"))
		})
	}
	// Any other alert is one.
	alert := &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}
	assert.False(t, withoutProtocol(alert))
	assert.False(t, withoutProtocol(nil))
}

// A server may support HTTP/2 only. A request over HTTP/1.1 then fails without a rejection
// and does not affect HTTP/2.
func TestEndpointTLSServerOnlyH2(t *testing.T) {
	srv := tlsServer(t, false)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	// Go's own server would talk HTTP/1.1 to clients that offer nothing else.
	strict := &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		speaks := "h2"
		if !slices.Contains(hello.SupportedProtos, speaks) {
			speaks = "nothing else"
		}
		return &tls.Config{Certificates: srv.TLS.Certificates, NextProtos: []string{speaks}}, nil
	}}
	serveOn(t, tls.NewListener(l, strict), http.HandlerFunc(shapes), func(s *http.Server) {
		s.Protocols.SetHTTP1(false)
		s.Protocols.SetHTTP2(true)
	})
	trusting := srv.Client().Transport.(*http.Transport).TLSClientConfig
	e := endpoint(t, l.Addr().String(), WithTLS(trusting))
	two := func() {
		req, _ := byTwo(t, false)
		rsp, err := e.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Equal(t, 2, rsp.ProtoMajor)
		read(t, rsp)
	}
	for _, method := range []string{http.MethodPost, http.MethodConnect} {
		for _, first := range []bool{true, false} { // also where nothing came by HTTP/2 yet
			if !first {
				two()
			}
			req, body := withBody(t, "hello")
			req.Method, req.RequestURI = method, "/" // received
			_, err := e.Call(t.Context(), req)
			require.ErrorIs(t, err, errNotH1)
			assert.NotErrorIs(t, err, layer.ErrNotReady)
			status, _ := StatusFromError(err)
			assert.Equal(t, http.StatusBadGateway, status)
			assert.EqualValues(t, 1, body.closes.Load())
			assert.Zero(t, body.reads.Load())
			assert.Equal(t, "up", e.Describe().State.Get("link"))
			require.NoError(t, layer.Poll(e))
			assert.Equal(t, 0, e.Describe().State.Get("in_flight"))
		}
		two()
	}
	e.onlyH1.Store(true) // of the one that was there before
	require.ErrorIs(t, get(t.Context(), e, "/"), errNotH1)
	two()

	// With WithHTTP1 the address cannot be reached.
	e = endpoint(t, l.Addr().String(), WithTLS(trusting), WithHTTP1())
	require.ErrorIs(t, get(t.Context(), e, "/"), layer.ErrNotReady)
	assert.Equal(t, "down", e.Describe().State.Get("link"))
}

// A cleartext server never receives a preface of HTTP/2, unless the request is an RPC that was
// received over HTTP/2, or a gRPC request.
func TestEndpointCleartextStartsWithHTTP1(t *testing.T) {
	for name, tt := range map[string]struct {
		major       int
		method      string
		contentType string
		query       string
		version     string // Connect-Protocol-Version
		received    string // RequestURI
		tls, h2     bool
	}{
		"by HTTP/1.1":                   {major: 1},
		"by HTTP/2":                     {major: 2, contentType: "application/json"},
		"by HTTP/2, over TLS":           {major: 2, tls: true, h2: true},
		"by HTTP/1.1, over TLS":         {major: 1, tls: true, received: "/"},
		"of a client, over TLS":         {major: 1, tls: true, h2: true},
		"gRPC":                          {major: 2, method: "POST", contentType: "application/grpc", h2: true},
		"gRPC of a client that is ours": {major: 1, method: "POST", contentType: "application/grpc+proto", h2: true},
		"gRPC-Web by HTTP/2":            {major: 2, method: "POST", contentType: "application/grpc-web", h2: true},
		"gRPC-Web by HTTP/1.1":          {major: 1, method: "POST", contentType: "application/grpc-web"},
		"Connect by HTTP/2":             {major: 2, method: "POST", contentType: "application/proto", version: "1", h2: true},
		"Connect stream by HTTP/2":      {major: 2, method: "POST", contentType: "application/connect+proto", h2: true},
		"Connect GET by HTTP/2":         {major: 2, query: "?connect=v1&encoding=json", h2: true},
		"Connect by HTTP/1.1":           {major: 1, method: "POST", contentType: "application/proto", version: "1"},
		"CONNECT":                       {major: 2, contentType: "application/grpc", method: http.MethodConnect},
	} {
		t.Run(name, func(t *testing.T) {
			var got atomic.Int64
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got.Store(int64(r.ProtoMajor))
				w.WriteHeader(http.StatusNoContent)
			})
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			opts := []EndpointOption{}
			if tt.tls {
				srv := tlsServer(t, true)
				opts = append(opts, WithTLS(srv.Client().Transport.(*http.Transport).TLSClientConfig))
				serveOn(t, tls.NewListener(l, &tls.Config{Certificates: srv.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}), h,
					func(s *http.Server) { s.Protocols.SetHTTP2(true) })
			} else {
				serveOn(t, l, h)
			}
			e := endpoint(t, l.Addr().String(), opts...)
			req := request(t, cmp.Or(tt.method, "GET"), "http://web:80/"+tt.query, "")
			req.ProtoMajor, req.RequestURI = tt.major, tt.received
			for name, value := range map[string]string{"Content-Type": tt.contentType, "Connect-Protocol-Version": tt.version} {
				if value != "" {
					req.Header.Set(name, value)
				}
			}
			rsp, err := e.Call(t.Context(), req)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			want := int64(1)
			if tt.h2 {
				want = 2
			}
			assert.Equal(t, want, got.Load())
		})
	}
}
