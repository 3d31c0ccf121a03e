package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
)

func TestCORS(t *testing.T) {
	var reached atomic.Int64
	p := start(t, head+"services:\n"+service("a", serverAt(t, func(w http.ResponseWriter, _ *http.Request) {
		reached.Add(1)
		w.Header().Set("Access-Control-Allow-Origin", "https://evil.example")
	}))+service("hangs", serverAt(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))+`
routes:
- name: any
  matches: [{path: {prefix: /any}}]
  backendRefs: [{name: a}]
  cors: {allowOrigins: ["*"]}
- name: shop
  matches: [{path: {prefix: /shop}, method: PUT, headers: [{name: X-A, exact: "1"}]}]
  backendRefs: [{name: a}]
  cors:
    allowOrigins: ["https://shop.example", "https://*.shop.example"]
    allowMethods: [PUT]
    allowHeaders: [X-A, Content-Type]
    exposeHeaders: [ETag]
    allowCredentials: true
    maxAge: 10m
- name: late
  matches: [{path: {prefix: /late}}]
  backendRefs: [{name: hangs}]
  timeouts: {request: 20ms}
  cors: {allowOrigins: ["https://shop.example"]}
- name: https
  matches: [{path: {prefix: /https}}]
  backendRefs: [{name: a}]
  cors: {allowOrigins: ["https://*"], allowMethods: ["*"], allowHeaders: ["*"], allowCredentials: true}
`)
	preflight := func(path, origin, method string) http.Header {
		a := p.get(t, "OPTIONS", path, "Origin: "+origin, "Access-Control-Request-Method: "+method)
		if a.StatusCode == http.StatusNotFound {
			return nil
		}
		assert.Equal(t, http.StatusNoContent, a.StatusCode)
		return a.Header
	}
	h := preflight("/shop", "https://eu.shop.example", "PUT")
	assert.Equal(t, "https://eu.shop.example", h.Get("Access-Control-Allow-Origin"))
	assert.Equal(t, "PUT", h.Get("Access-Control-Allow-Methods"))
	assert.Equal(t, "X-A, Content-Type", h.Get("Access-Control-Allow-Headers"))
	assert.Equal(t, "true", h.Get("Access-Control-Allow-Credentials"))
	assert.Equal(t, "600", h.Get("Access-Control-Max-Age"))
	assert.Equal(t, "Origin", h.Get("Vary"))
	assert.Equal(t, "ETag", h.Get("Access-Control-Expose-Headers"))
	assert.Empty(t, preflight("/shop", "https://shop.example.evil.example", "PUT").Get("Access-Control-Allow-Origin"))
	assert.Empty(t, preflight("/shop", "https://.shop.example", "PUT").Get("Access-Control-Allow-Origin"))
	assert.Equal(t, "https://a.shop.example", preflight("/shop", "https://a.shop.example", "PUT").Get("Access-Control-Allow-Origin"))
	assert.Nil(t, preflight("/shop", "https://shop.example", "DELETE"), "no route")
	assert.Equal(t, "*", preflight("/any", "null", "POST").Get("Access-Control-Allow-Origin"))
	h = p.get(t, "OPTIONS", "/https", "Origin: https://shop.example:8443", "Access-Control-Request-Method: PUT",
		"Access-Control-Request-Headers: x-a, x-b").Header
	assert.Equal(t, "https://shop.example:8443", h.Get("Access-Control-Allow-Origin"))
	assert.Equal(t, "true", h.Get("Access-Control-Allow-Credentials"))
	assert.Equal(t, "PUT", h.Get("Access-Control-Allow-Methods"))
	assert.Equal(t, "x-a, x-b", h.Get("Access-Control-Allow-Headers"))
	assert.Empty(t, preflight("/https", "null", "PUT").Get("Access-Control-Allow-Origin"))
	assert.Zero(t, reached.Load())

	a := p.get(t, "PUT", "/shop", "X-A: 1", "Origin: https://shop.example")
	assert.Equal(t, []string{"https://shop.example"}, a.Header.Values("Access-Control-Allow-Origin"))
	assert.Equal(t, "ETag", a.Header.Get("Access-Control-Expose-Headers"))
	assert.Empty(t, p.get(t, "PUT", "/shop", "X-A: 1", "Origin: https://evil.example").Header.Get("Access-Control-Allow-Origin"))
	assert.EqualValues(t, 2, reached.Load())
	late := p.get(t, "GET", "/late", "Origin: https://shop.example") // a page must be able to read the status
	assert.Equal(t, []any{504, "https://shop.example"}, []any{late.StatusCode, late.Header.Get("Access-Control-Allow-Origin")})
	assert.Empty(t, p.get(t, "GET", "/late", "Origin: https://evil.example").Header.Get("Access-Control-Allow-Origin"))
}

func TestExternalAuth(t *testing.T) {
	auth := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sesame" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, "who are you?")
			return
		}
		w.Header().Set("X-User", fmt.Sprint(r.Method, r.URL.Path, r.Header.Get("X-Forwarded-Method"), r.Header.Get("X-Forwarded-Uri"),
			r.Header.Get("X-Other"), r.ContentLength))
	})
	seen := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.Header.Get("X-User")+" "+r.Header.Get("X_user")+string(body))
	})
	hangs := serverAt(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	p := start(t, head+"services:\n"+service("auth", auth)+service("a", seen)+service("hangs", hangs)+`
routes:
- {name: late, matches: [{path: {exact: /late}}], backendRefs: [{name: a}], externalAuth: {backendRef: {name: hangs}, timeout: 20ms}}
- name: all
  backendRefs: [{name: a}]
  externalAuth: {backendRef: {name: auth}, path: /check, allowedRequestHeaders: [Authorization], allowedResponseHeaders: [X-User]}
`)
	url := "http://" + p.addresses["http"] + "/books?page=2"
	a, err := p.send(t.Context(), "POST", url, "body", "X-User: root")
	require.NoError(t, err)
	assert.Equal(t, []any{401, "who are you?", "Bearer"}, []any{a.StatusCode, a.body, a.Header.Get("WWW-Authenticate")})
	a, err = p.send(t.Context(), "POST", url, "body", "X-User: root", "X_User: root", "Authorization: Bearer sesame", "X-Other: x")
	require.NoError(t, err)
	assert.Equal(t, "GET/checkPOST/books?page=20 body", a.body)
	assert.Equal(t, http.StatusServiceUnavailable, p.get(t, "GET", "/late").StatusCode)
}

// The cancellation of a request is not an error of the service that is asked.
func TestExternalAuthCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client is gone")
	asked := layer.Func[*http.Request, *http.Response](func(ctx context.Context, _ *http.Request) (*http.Response, error) {
		cancel(gone)
		return nil, context.Cause(ctx)
	})
	svc := externalAuth(&config.ExternalAuth{Path: "/"}, asked)(asked)
	_, err := svc.Call(ctx, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
	require.ErrorIs(t, err, gone)
}

func TestCompression(t *testing.T) {
	text := strings.Repeat("a text that repeats itself ", 100)
	p := start(t, strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", compression: {}}]`, 1)+`
routes:
- {name: short, matches: [{path: {exact: /short}}], directResponse: {status: 200, body: "short"}}
- {name: image, matches: [{path: {exact: /image}}], directResponse: {status: 200, body: "`+text+`", contentType: image/png}}
- {name: all, directResponse: {status: 200, body: "`+text+`"}}
`)
	a := p.get(t, "GET", "/", "Accept-Encoding: gzip")
	assert.Equal(t, "gzip", a.Header.Get("Content-Encoding"))
	plain, err := gzip.NewReader(strings.NewReader(a.body))
	require.NoError(t, err)
	body, err := io.ReadAll(plain)
	require.NoError(t, err)
	assert.Equal(t, text, string(body))
	assert.Less(t, len(a.body), len(text)/5)
	assert.Equal(t, "zstd", p.get(t, "GET", "/", "Accept-Encoding: zstd").Header.Get("Content-Encoding"))
	for _, path := range []string{"/short", "/image"} {
		assert.Empty(t, p.get(t, "GET", path, "Accept-Encoding: gzip").Header.Get("Content-Encoding"), path)
	}
	assert.Equal(t, text, p.get(t, "GET", "/", "Accept-Encoding: identity").body)
}

// both runs a test without and with compression on the listener.
func both(t *testing.T, test func(t *testing.T, head string)) {
	t.Helper()
	t.Run("plain", func(t *testing.T) { test(t, head) })
	t.Run("compression", func(t *testing.T) {
		test(t, strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", compression: {}}]`, 1))
	})
}

func TestWebSocket(t *testing.T) {
	both(t, func(t *testing.T, head string) {
		t.Helper()
		echo := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "websocket", r.Header.Get("Upgrade"))
			conn, buffer, err := http.NewResponseController(w).Hijack()
			if !assert.NoError(t, err) {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(conn, buffer)
		})
		p := start(t, head+"services:\n"+service("a", echo)+"routes: [{name: all, backendRefs: [{name: a}], timeouts: {request: 1s}}]\n")
		conn, err := net.Dial("tcp", p.addresses["http"])
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nAccept-Encoding: gzip\r\n\r\n")
		require.NoError(t, err)
		in := bufio.NewReader(conn)
		rsp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		rsp.Body.Close()
		require.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
		for _, message := range []string{"one\n", "two\n"} {
			_, err = io.WriteString(conn, message)
			require.NoError(t, err)
			got, err := in.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, message, got)
		}
	})
}

// Each event arrives before the next one is sent.
func TestServerSentEvents(t *testing.T) {
	both(t, func(t *testing.T, head string) {
		t.Helper()
		next := make(chan string)
		events := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			flush := http.NewResponseController(w).Flush
			for _ = flush(); ; _ = flush() {
				select {
				case text := <-next:
					_, _ = io.WriteString(w, "data: "+text+"\n\n")
				case <-r.Context().Done():
					return
				}
			}
		})
		p := start(t, head+"services:\n"+service("a", events)+"routes: [{name: all, backendRefs: [{name: a}]}]\n")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "GET", "http://"+p.addresses["http"]+"/", nil) // the client accepts gzip
		require.NoError(t, err)
		rsp, err := p.client.Do(req)
		require.NoError(t, err)
		defer rsp.Body.Close()
		in := bufio.NewReader(rsp.Body)
		for i := range 3 {
			next <- fmt.Sprint(i)
			line, err := in.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("data: %d\n", i), line)
			_, err = in.ReadString('\n')
			require.NoError(t, err)
		}
	})
}

// Unary calls, streams and statuses of gRPC, by its routes.
func TestGRPC(t *testing.T) {
	both(t, func(t *testing.T, head string) {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		server, states := grpc.NewServer(), health.NewServer()
		grpc_health_v1.RegisterHealthServer(server, states)
		go func() { _ = server.Serve(l) }()
		t.Cleanup(server.Stop)
		p := start(t, head+"services:\n"+service("a", l.Addr().String())+`
routes:
- {name: check, matches: [{grpc: {service: grpc.health.v1.Health, method: Check}}], backendRefs: [{name: a}]}
- {name: watch, matches: [{grpc: {method: Watch}}], backendRefs: [{name: a}]}
`)
		conn, err := grpc.NewClient(p.addresses["http"], grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		client := grpc_health_v1.NewHealthClient(conn)
		rsp, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		assert.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, rsp.GetStatus())
		_, err = client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "none"})
		assert.Equal(t, codes.NotFound, status.Code(err))
		_, err = client.List(t.Context(), &grpc_health_v1.HealthListRequest{})
		assert.Equal(t, codes.Unimplemented, status.Code(err), "no route")

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{
			grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING,
		} {
			update, err := stream.Recv()
			require.NoError(t, err)
			require.Equal(t, want, update.GetStatus())
			states.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		}
	})
}

// A service with TLS and a client certificate is used by HTTP/2.
func TestServiceTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto+" "+r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	dir, text := serviceTLS(t, s)
	defer s.Close()
	p := startFile(t, writeIn(t, dir, head+"services:\n"+text+"routes: [{name: all, backendRefs: [{name: a}]}]\n"))
	assert.Equal(t, "HTTP/2.0 books.example", p.get(t, "GET", "/").body)
}
