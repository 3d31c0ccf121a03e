package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/gateway/internal/certtest"
	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// tcpBackend returns the address of a server that sends its name first, and then each line again. If cert
// is not nil, it uses TLS.
func tcpBackend(t *testing.T, name string, cert *tls.Certificate) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if cert != nil {
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*cert}})
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				fmt.Fprintln(conn, name)
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().String()
}

// Connections go to the service of their server name, with TLS that ends there, or of the listener. A server
// may send first if no route needs a server name.
func TestTCPRoutes(t *testing.T) {
	authority := certtest.New(t, "orders.example", "a.shop.example")
	cert := authority.TLS(t)
	text := func(first string) string {
		return `
listeners:
- {name: http, address: "127.0.0.1:0"}
- {name: named, address: "127.0.0.1:0", protocol: TCP}
- {name: plain, address: "127.0.0.1:0", protocol: TCP}
- {name: closed, address: "127.0.0.1:0", protocol: TCP, clientCIDRs: {allow: [10.0.0.0/8]}}
admin: {address: "127.0.0.1:0", tap: "off"}
accessLog: {format: "off"}
services:
` + service("orders", tcpBackend(t, "orders", &cert)) + service("shop", tcpBackend(t, "shop", &cert)) +
			"- {name: first, healthCheck: {tcp: true, interval: 20ms}, static: {addresses: [\"" + tcpBackend(t, first, nil) + "\", \"127.0.0.1:1\"]}}\n" +
			service("gone", "127.0.0.1:1") + `
tcpRoutes:
- {name: orders, listeners: [named], hostnames: [orders.example], backendRefs: [{name: orders}]}
- {name: shop, listeners: [named], hostnames: ["*.shop.example"], backendRefs: [{name: shop}]}
- {name: plain, listeners: [plain, closed], backendRefs: [{name: gone, weight: 0}, {name: first}]}
routes: [{name: all, directResponse: {status: 200, body: http}}]
`
	}
	p := start(t, text("one"))
	dial := func(listener string) net.Conn {
		conn, err := net.Dial("tcp", p.addresses[listener])
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		return conn
	}
	talk := func(conn net.Conn) string {
		defer conn.Close()
		in := bufio.NewReader(conn)
		name, err := in.ReadString('\n')
		if err != nil {
			return "closed"
		}
		fmt.Fprintln(conn, "hello")
		again, err := in.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "hello\n", again)
		return strings.TrimSpace(name)
	}
	secure := func(name string) net.Conn {
		return tls.Client(dial("named"), &tls.Config{ServerName: name, RootCAs: authority.Pool()})
	}
	assert.Equal(t, "orders", talk(secure("orders.example")))
	assert.Equal(t, "shop", talk(secure("a.shop.example")))
	assert.Equal(t, "closed", talk(secure("other.example")))
	unnamed := dial("named")
	_, err := io.WriteString(unnamed, "GET / HTTP/1.1\r\n\r\n")
	require.NoError(t, err)
	assert.Equal(t, "closed", talk(unnamed))
	for range 5 {
		assert.Equal(t, "one", talk(dial("plain")))
	}
	assert.Equal(t, "closed", talk(dial("closed")))
	assert.Equal(t, "http", p.get(t, "GET", "/").body)

	// A connection outlives a reload, and new ones use the new configuration.
	open := dial("plain")
	in := bufio.NewReader(open)
	_, err = in.ReadString('\n')
	require.NoError(t, err)
	p.replace(t, text("two"))
	until(t, func() bool { return talk(dial("plain")) == "two" })
	fmt.Fprintln(open, "still here")
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "still here\n", line)
	require.NoError(t, open.Close())
	require.Error(t, run(context.WithoutCancel(t.Context()), []string{"explain", p.file, "GET", "https://orders.example/"}, io.Discard, io.Discard))
}

// A connection is closed as soon as every endpoint of its service has failed, without the queue, which would hold it for an
// hour. A service with a direct response closes its connections, too. The route's other services get only their own share.
func TestTCPEveryEndpointFailed(t *testing.T) {
	const queue = `queue: {maxWait: 1h}, connectTimeout: 50s`
	p := start(t, `
listeners:
- {name: gone, address: "127.0.0.1:0", protocol: TCP}
- {name: split, address: "127.0.0.1:0", protocol: TCP}
- {name: even, address: "127.0.0.1:0", protocol: TCP}
- {name: fixed, address: "127.0.0.1:0", protocol: TCP}
admin: {address: "127.0.0.1:0", tap: "off"}
accessLog: {format: "off"}
services:
- {name: refused, static: {addresses: ["127.0.0.1:1", "127.0.0.1:2"]}, `+queue+`}
- {name: unknown, dns: {name: "unknown.invalid:80"}, `+queue+`}
- {name: answer, directResponse: {status: 500}}
`+service("orders", tcpBackend(t, "orders", nil))+`
tcpRoutes:
- {name: gone, listeners: [gone], backendRefs: [{name: refused}, {name: unknown}]}
- {name: split, listeners: [split], backendRefs: [{name: refused, weight: 1000000}, {name: orders}]}
- {name: fixed, listeners: [fixed], backendRefs: [{name: answer, weight: 1000000}, {name: orders}]}
- {name: even, listeners: [even], backendRefs: [{name: refused}, {name: orders}]}
routes: []
`)
	read := func(listener string) string {
		conn, err := net.Dial("tcp", p.addresses[listener])
		if errors.Is(err, syscall.ECONNRESET) { // closed even before the client has noticed that it was accepted
			return ""
		}
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		line, err := bufio.NewReader(conn).ReadString('\n')
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		return line
	}
	for range 3 { // fresh, and after the failure
		assert.Empty(t, read("gone"))
		assert.Empty(t, read("split"))
		assert.Empty(t, read("fixed"))
	}
	until(t, func() bool { return read("even") == "" })
	until(t, func() bool { return read("even") == "orders\n" })
}

// Access log, metrics and tap have each connection with its route, its service and the reason of its end.
func TestTCPConnectionsAreShown(t *testing.T) {
	taps := freeport.Addr(t)
	orders := tcpBackend(t, "orders", nil)
	p := start(t, `
listeners:
- {name: plain, address: "127.0.0.1:0", protocol: TCP}
- {name: named, address: "127.0.0.1:0", protocol: TCP}
- {name: denied, address: "127.0.0.1:0", protocol: TCP, clientCIDRs: {allow: [10.0.0.0/8]}}
admin: {address: "127.0.0.1:0", tap: "`+taps+`"}
services:
`+service("orders", orders)+service("gone", "127.0.0.1:1")+`
tcpRoutes:
- {name: orders, listeners: [plain, denied], backendRefs: [{name: orders}]}
- {name: gone, listeners: [named], hostnames: [gone.example], backendRefs: [{name: gone}]}
`)
	api, err := grpc.NewClient(taps, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		watching.Wait()
		_ = api.Close()
	})
	var mu sync.Mutex
	shown := make(map[string]tap.ConnectionClose)
	watching.Go(func() {
		for e, err := range tap.Watch(ctx, api, &tappb.WatchRequest{}) {
			if err == nil && e.Close != nil {
				mu.Lock()
				shown[fmt.Sprint(e.Direction, " ", e.DestinationLabels, " ", e.RouteLabels)] = *e.Close
				mu.Unlock()
			}
		}
	})
	// connect sends text to a listener until the gateway closes the connection.
	connect := func(listener, text string) {
		conn, err := net.Dial("tcp", p.addresses[listener])
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, _ = io.WriteString(conn, text)
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
	}
	hello := func() { // a ClientHello without an end of the connection
		conn, err := tls.Dial("tcp", p.addresses["named"], &tls.Config{ServerName: "gone.example", MinVersion: tls.VersionTLS12})
		if !assert.Error(t, err) {
			conn.Close()
		}
	}
	has := func(key string) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); _, ok := shown[key]; return ok }
	}
	inbound := "inbound map[listener:plain] map[route:orders service:orders]"
	until(t, func() bool { connect("plain", "hello"); return has(inbound)() })
	until(t, has("outbound map[service:orders] map[route:orders service:orders]"))
	mu.Lock()
	assert.Equal(t, []any{uint64(5), uint64(12), ""}, []any{shown[inbound].Sent, shown[inbound].Received, shown[inbound].Err})
	mu.Unlock()
	hello()
	connect("named", "no TLS")
	connect("denied", "")
	for _, key := range []string{
		"inbound map[listener:named] map[route:gone service:gone]", "inbound map[listener:named] map[]", "inbound map[listener:denied] map[]",
	} {
		until(t, has(key))
		mu.Lock()
		assert.NotEmpty(t, shown[key].Err, key)
		mu.Unlock()
	}

	type connection struct {
		Client        string `json:"client.addr"`
		Received      int    `json:"request_bytes"`
		Sent          int    `json:"response_bytes"`
		Duration      int    `json:"total_ns"`
		Version, Host string
		Route         string
		Upstream      string
		Endpoint      string
		Error         string
	}
	lines := make(map[string]connection)
	until(t, func() bool {
		for text := range strings.Lines(p.log.String()) {
			var c connection
			if json.Unmarshal([]byte(text), &c) == nil && c.Version == "TCP" {
				assert.Positive(t, c.Duration)
				assert.NotEmpty(t, c.Client)
				c.Duration, c.Client = 0, ""
				lines[c.Route+" "+c.Error] = c
			}
		}
		return len(lines) >= 4
	})
	assert.Equal(t, connection{Received: 5, Sent: 12, Version: "TCP", Route: "orders", Upstream: "orders", Endpoint: orders}, lines["orders "])
	for name, c := range lines {
		switch c.Route {
		case "gone":
			assert.Equal(t, "gone.example", c.Host)
			assert.Contains(t, c.Error, "connection refused")
		case "":
			assert.Regexp(t, "no route|client_cidrs", c.Error, name)
		}
	}
	metrics, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/metrics", "")
	require.NoError(t, err)
	for _, series := range []string{
		`gateway_tcp_connections_total{error="",listener="plain",route="orders"} `,
		`gateway_tcp_connections_total{error="client_cidrs",listener="denied",route=""} 1`,
		`gateway_tcp_connections_total{error="no route",listener="named",route=""} 1`,
		`gateway_tcp_connections_total{error="failfast",listener="named",route="gone"} 1`,
		`gateway_tcp_bytes_total{direction="to_client",listener="plain",route="orders"} `,
	} {
		assert.Contains(t, metrics.body, series)
	}
}

// A service learns the address of the client by the PROXY protocol, before TLS. Health checks have a header
// without addresses.
func TestTCPProxyProtocol(t *testing.T) {
	authority := certtest.New(t, "orders.example")
	cert := authority.TLS(t)
	for _, version := range []string{"V1", "V2"} {
		for _, encrypted := range []bool{false, true} {
			seen := make(chan string, 1000)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var serving sync.WaitGroup
			serving.Go(func() {
				for {
					accepted, err := l.Accept()
					if err != nil {
						return
					}
					serving.Go(func() {
						defer accepted.Close()
						peer := accepted.RemoteAddr().String()
						conn, err := tcplayer.ProxyProtocol()(context.WithoutCancel(t.Context()), accepted)
						if err != nil { // the gateway ends
							return
						}
						client := conn.RemoteAddr().String()
						if encrypted {
							conn = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{cert}})
						}
						if client == peer {
							client = "check"
						}
						_, _ = io.WriteString(conn, client+"\n")
						_, _ = io.Copy(io.Discard, conn)
						select {
						case seen <- client:
						default: // enough checks
						}
					})
				}
			})
			t.Cleanup(func() { l.Close(); serving.Wait() })
			dir := t.TempDir()
			authority.Write(t, filepath.Join(dir, "orders"), filepath.Join(dir, "ca.crt"))
			text := fmt.Sprintf(`
listeners: [{name: tcp, address: "127.0.0.1:0", protocol: TCP}]
admin: {address: "127.0.0.1:0", tap: "off"}
accessLog: {format: "off"}
services:
- name: orders
  static: {addresses: ["%s"]}
  proxyProtocol: {version: %s}
  healthCheck: {tcp: true, interval: 20ms}
`, l.Addr(), version)
			if encrypted {
				text += "  tls: {serverName: orders.example, caCertificates: ca.crt}\n"
			}
			p := startFile(t, writeIn(t, dir, text+"tcpRoutes: [{name: orders, backendRefs: [{name: orders}]}]\n"))
			conn, err := net.Dial("tcp", p.addresses["tcp"])
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			line, err := bufio.NewReader(conn).ReadString('\n')
			require.NoError(t, err)
			assert.Equal(t, conn.LocalAddr().String()+"\n", line)
			until(t, func() bool { return <-seen == "check" })
			require.NoError(t, conn.Close())
		}
	}
}
