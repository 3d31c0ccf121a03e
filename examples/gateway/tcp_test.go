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
	"regexp"
	"strconv"
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

// tcpLoad is a configuration with a listener or route for each outcome of TestTCPSumsAgree.
const tcpLoad = `
listeners:
- {name: probe, address: "127.0.0.1:0", protocol: TCP}
- {name: plain, address: "127.0.0.1:0", protocol: TCP}
- {name: named, address: "127.0.0.1:0", protocol: TCP}
- {name: denied, address: "127.0.0.1:0", protocol: TCP, clientCIDRs: {allow: [10.0.0.0/8]}}
- {name: limited, address: "127.0.0.1:0", protocol: TCP, maxConnections: 1}
- {name: behind, address: "127.0.0.1:0", protocol: TCP, proxyProtocol: [127.0.0.0/8], clientCIDRs: {deny: [192.0.2.66]}}
admin: {address: "127.0.0.1:0", tap: "TAP"}
services:
- {name: orders, static: {addresses: ["ORDERS"]}}
- {name: shop, static: {addresses: ["SHOP"]}}
- {name: gone, static: {addresses: ["127.0.0.1:1"]}}
- {name: unknown, dns: {name: "unknown.invalid:80"}}
- {name: answer, directResponse: {status: 500}}
tcpRoutes:
- {name: probe, listeners: [probe], backendRefs: [{name: orders}]}
- {name: orders, listeners: [plain, denied, limited, behind], backendRefs: [{name: orders}]}
- {name: shop, listeners: [named], hostnames: [shop.example], backendRefs: [{name: shop}]}
- {name: gone, listeners: [named], hostnames: [gone.example], backendRefs: [{name: gone}]}
- {name: unknown, listeners: [named], hostnames: [unknown.example], backendRefs: [{name: unknown}]}
- {name: answer, listeners: [named], hostnames: [answer.example], backendRefs: [{name: answer}]}
`

// connectionSums has the number of connections and their bytes, except those of the route "probe". The keys are
// "route/service/outcome"; for the tap, which has no outcomes, "ok" or "failed" replaces it.
type connectionSums struct {
	ended          map[string]int
	sent, received int
}

func (s *connectionSums) add(n int, route, service, outcome string) {
	if s.ended == nil {
		s.ended = make(map[string]int)
	}
	if route != "probe" && n > 0 {
		s.ended[route+"/"+service+"/"+outcome] += n
	}
}

// forTap returns s with the outcomes that the tap has.
func (s *connectionSums) forTap() (all connectionSums) {
	all.sent = s.sent
	all.received = s.received
	for key, n := range s.ended {
		parts := strings.Split(key, "/")
		if parts[2] != "ok" {
			parts[2] = "failed"
		}
		all.add(n, parts[0], parts[1], parts[2])
	}
	return all
}

// tcpLine is the line of a connection in the access log.
type tcpLine struct {
	Client    string `json:"client.addr"`
	IP        string `json:"client.ip"`
	Sent      int    `json:"request_bytes"`
	Received  int    `json:"response_bytes"`
	Duration  int    `json:"total_ns"`
	Timestamp time.Time
	Version   string
	Host      string
	Route     string
	Upstream  string
	Endpoint  string
	Error     string
	Outcome   string
}

// tcpLines returns the lines of connections, except those of the route "probe".
func tcpLines(t *testing.T, p *process) (all []tcpLine) {
	t.Helper()
	for text := range strings.Lines(p.log.String()) {
		var line tcpLine
		if strings.HasPrefix(text, "{") && strings.HasSuffix(text, "\n") {
			require.NoError(t, json.Unmarshal([]byte(text), &line))
			if line.Route != "probe" {
				all = append(all, line)
			}
		}
	}
	return all
}

// measuredConnections returns the connections in the counters and in the histogram.
func measuredConnections(t *testing.T, p *process) (all, durations connectionSums) {
	t.Helper()
	metrics, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/metrics", "")
	require.NoError(t, err)
	series := regexp.MustCompile(`(?m)^gateway_tcp_(\w+)\{([^}]*)\} (\d+)$`)
	label := func(labels, name string) string {
		_, value, _ := strings.Cut(labels, name+`="`)
		value, _, _ = strings.Cut(value, `"`)
		return value
	}
	for _, m := range series.FindAllStringSubmatch(metrics.body, -1) {
		n, err := strconv.Atoi(m[3])
		require.NoError(t, err)
		route := label(m[2], "route")
		switch m[1] {
		case "connections_total":
			all.add(n, route, label(m[2], "service"), label(m[2], "outcome"))
		case "connection_duration_seconds_count":
			durations.add(n, route, label(m[2], "service"), label(m[2], "outcome"))
		case "bytes_total":
			switch direction := label(m[2], "direction"); {
			case route == "probe":
			case direction == "from_client":
				all.sent += n
			default:
				all.received += n
			}
		}
	}
	return all, durations
}

// tcpTap watches the connections of clients.
type tcpTap struct {
	mu   sync.Mutex
	sums connectionSums
	why  []string // explanations of failed connections
}

// watchTCP returns a tcpTap of p, whose tap is at the address taps, once it sees connections.
func watchTCP(t *testing.T, p *process, taps string) *tcpTap {
	t.Helper()
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
	w := new(tcpTap)
	probed, see := context.WithCancel(ctx)
	watching.Go(func() {
		for e, err := range tap.Watch(ctx, api, &tappb.WatchRequest{Explain: true}) {
			if err != nil || e.Close == nil || e.Direction != tap.Inbound {
				continue
			}
			if e.RouteLabels["route"] == "probe" {
				see()
				continue
			}
			outcome := "ok"
			w.mu.Lock()
			if e.Close.Err != "" {
				outcome = "failed"
				w.why = append(w.why, fmt.Sprint(e.Close.Explanation))
			}
			w.sums.add(1, e.RouteLabels["route"], e.RouteLabels["service"], outcome)
			w.sums.sent += int(e.Close.Sent)
			w.sums.received += int(e.Close.Received)
			w.mu.Unlock()
		}
	})
	until(t, func() bool {
		exchange(t, p, "probe", "")
		return probed.Err() != nil
	})
	return w
}

// exchange connects to a listener and sends text. It returns what the gateway sends until it closes the connection.
func exchange(t *testing.T, p *process, listener, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", p.addresses[listener])
	if errors.Is(err, syscall.ECONNRESET) { // rejected even before the client has noticed that it was accepted
		return ""
	}
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, _ = io.WriteString(conn, text)
	_ = conn.(*net.TCPConn).CloseWrite()
	got, _ := io.ReadAll(conn)
	return string(got)
}

// Access log, metrics and tap have each connection with its route, its service and its outcome, also those that the
// gateway rejects or that fail.
func TestTCPSumsAgree(t *testing.T) {
	taps := freeport.Addr(t)
	authority := certtest.New(t, "shop.example")
	cert := authority.TLS(t)
	orders := tcpBackend(t, "orders", nil)
	p := start(t, strings.NewReplacer("TAP", taps, "ORDERS", orders, "SHOP", tcpBackend(t, "shop", &cert)).Replace(tcpLoad))
	tapped := watchTCP(t, p, taps)

	secure := func(name string) (*tls.Conn, error) {
		return tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", p.addresses["named"],
			&tls.Config{ServerName: name, RootCAs: authority.Pool(), MinVersion: tls.VersionTLS12})
	}
	for range 3 {
		assert.Equal(t, "orders\nhello", exchange(t, p, "plain", "hello"))
	}
	for range 2 {
		conn, err := secure("shop.example")
		require.NoError(t, err)
		require.NoError(t, conn.CloseWrite())
		got, err := io.ReadAll(conn)
		require.NoError(t, err)
		assert.Equal(t, "shop\n", string(got))
		require.NoError(t, conn.Close())
	}
	for _, name := range []string{"gone.example", "gone.example", "unknown.example", "answer.example", "other.example"} {
		_, err := secure(name)
		require.Error(t, err, name)
	}
	assert.Empty(t, exchange(t, p, "named", "GET / HTTP/1.1\r\n\r\n"))
	assert.Empty(t, exchange(t, p, "denied", ""))
	assert.Empty(t, exchange(t, p, "behind", "GET / HTTP/1.1\r\n\r\n"))
	assert.Empty(t, exchange(t, p, "behind", "PROXY TCP4 192.0.2.66 192.0.2.1 1000 2000\r\nhello"))
	assert.Equal(t, "orders\nhello", exchange(t, p, "behind", "PROXY TCP4 192.0.2.9 192.0.2.1 1000 2000\r\nhello"))
	greeted := func(listener string) *net.TCPConn {
		conn, err := net.Dial("tcp", p.addresses[listener])
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.ReadFull(conn, make([]byte, len("orders\n")))
		require.NoError(t, err)
		return conn.(*net.TCPConn)
	}
	resets := greeted("plain")
	require.NoError(t, resets.SetLinger(0))
	require.NoError(t, resets.Close())
	open := greeted("limited")
	assert.Empty(t, exchange(t, p, "limited", ""))
	require.NoError(t, open.Close())

	want := map[string]int{
		"orders/orders/ok": 5, "shop/shop/ok": 2, "orders/orders/aborted": 1,
		"gone/gone/connect_failed": 2, "unknown/unknown/no_endpoint": 1, "answer/answer/direct_response": 1,
		"//no_route": 2, "//client_cidrs": 2, "//max_connections": 1, "//proxy_protocol": 1,
	}
	total := 0
	for _, n := range want {
		total += n
	}
	until(t, func() bool {
		measured := 0
		counted, _ := measuredConnections(t, p)
		for _, n := range counted.ended {
			measured += n
		}
		tapped.mu.Lock()
		defer tapped.mu.Unlock()
		shown := 0
		for _, n := range tapped.sums.ended {
			shown += n
		}
		return min(measured, shown, len(tcpLines(t, p))) >= total
	})
	var logged connectionSums
	for _, line := range tcpLines(t, p) {
		logged.add(1, line.Route, line.Upstream, line.Outcome)
		logged.sent += line.Sent
		logged.received += line.Received
		assert.Equal(t, "TCP", line.Version)
		assert.Positive(t, line.Duration)
		assert.False(t, line.Timestamp.IsZero())
		assert.Equal(t, line.Outcome == "ok", line.Error == "", line)
		assert.True(t, strings.HasPrefix(line.Client, line.IP+":"), line)
		checkTCPLine(t, line, orders)
	}
	assert.Equal(t, want, logged.ended, "access log")
	counted, durations := measuredConnections(t, p)
	assert.Equal(t, logged, counted, "metrics")
	assert.Equal(t, logged.ended, durations.ended, "histogram")
	tapped.mu.Lock()
	defer tapped.mu.Unlock()
	assert.Equal(t, logged.forTap(), tapped.sums, "tap")
	assert.Contains(t, fmt.Sprint(tapped.why), "other.example")
}

// checkTCPLine checks the fields of a line that depend on its outcome. orders is the endpoint of the service with this name.
func checkTCPLine(t *testing.T, line tcpLine, orders string) {
	t.Helper()
	switch line.Outcome {
	case "aborted":
		assert.Contains(t, line.Error, "connection reset by peer")
		assert.Equal(t, orders, line.Endpoint)
	case "connect_failed":
		assert.Contains(t, line.Error, "connection refused")
		assert.Equal(t, "127.0.0.1:1", line.Endpoint)
		assert.Equal(t, "gone.example", line.Host)
	case "no_endpoint":
		assert.Contains(t, line.Error, "unknown.invalid")
		assert.Equal(t, "unknown.example", line.Host)
	case "no_route":
		if line.Host == "" {
			assert.Contains(t, line.Error, "no server name")
		} else {
			assert.Equal(t, "other.example", line.Host)
		}
	case "proxy_protocol", "max_connections":
		assert.Equal(t, "127.0.0.1", line.IP)
	case "client_cidrs":
		assert.Contains(t, line.Error, line.IP)
	}
}

// A reload deletes the series of TCP routes and services that it removes. A connection of such a route that ends
// later is counted for all removed ones. Fields of the access log are selected as for requests.
func TestTCPMetricsOfRemovedRoutes(t *testing.T) {
	to := tcpBackend(t, "a", nil)
	text := func(name string) string {
		return `
listeners:
- {name: http, address: "127.0.0.1:0"}
- {name: tcp, address: "127.0.0.1:0", protocol: TCP}
admin: {address: "127.0.0.1:0", tap: "off"}
accessLog: {fields: [route, status]}
services:
` + service(name, to) + "tcpRoutes: [{name: " + name + ", backendRefs: [{name: " + name + "}]}]\nroutes: []\n"
	}
	p := start(t, text("first"))
	open, err := net.Dial("tcp", p.addresses["tcp"])
	require.NoError(t, err)
	_, err = io.ReadFull(open, make([]byte, 2))
	require.NoError(t, err)
	exchange(t, p, "tcp", "hello")
	ended := func(key string) int {
		counted, _ := measuredConnections(t, p)
		return counted.ended[key]
	}
	until(t, func() bool { return ended("first/first/ok") == 1 })
	p.replace(t, text("second"))
	until(t, func() bool {
		exchange(t, p, "tcp", "hello")
		return ended("second/second/ok") > 0 && ended("first/first/ok") == 0
	})
	// An exchange during the reload may have ended after it, too.
	removed := ended("(removed)//ok")
	require.NoError(t, open.Close())
	until(t, func() bool { return ended("(removed)//ok") > removed })
	require.Contains(t, p.log.String(), `{"outcome":"ok","route":"second"}`)
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
