package sidecar_test

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
)

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// hinted runs a row through two proxies, with and without HTTP/2 between them.
func hinted(t *testing.T, test func(t *testing.T, hints ...func(*destination.WeightedAddr))) {
	t.Run("orig-proto", func(t *testing.T) { test(t, speaksH2) })
	t.Run("HTTP1", func(t *testing.T) { test(t) })
}

// Requests arrive at the application unchanged, over mutual TLS between two proxies.
func TestA1ToA18RequestsMesh(t *testing.T) {
	t.Parallel()
	hinted(t, func(t *testing.T, hints ...func(*destination.WeightedAddr)) {
		up, got := application(t, okAnswer)
		m := newMesh(t, up, hints...)
		for name, tt := range map[string]struct {
			sent, first string
			fields      []string
			body        string
		}{
			"A1 HTTP/1":                      {"GET /a?b=c HTTP/1.1\nHost: web\nX-A: 1\n\n", "GET /a?b=c HTTP/1.1", []string{"Host: web", "X-A: 1"}, ""},
			"A8 hop-by-hop":                  {"GET / HTTP/1.1\nHost: web\nConnection: X-Mine, close\nX-Mine: 1\nKeep-Alive: 5\nProxy-Connection: x\n\n", "GET / HTTP/1.1", []string{"Host: web"}, ""},
			"A9 HTTP/1.0":                    {"GET /a HTTP/1.0\nHost: web\n\n", "GET /a HTTP/1.0", []string{"Host: web"}, ""},
			"A10 absolute":                   {"GET http://web.default/a?b HTTP/1.1\nHost: other\n\n", "GET http://web.default/a?b HTTP/1.1", []string{"Host: web.default"}, ""},
			"A12 l5d-orig-proto":             {"GET / HTTP/1.1\nHost: web\nl5d-orig-proto: HTTP/1.0; absolute-form\n\n", "GET / HTTP/1.1", []string{"Host: web"}, ""},
			"A13 h2c":                        {"GET / HTTP/1.1\nHost: web\nConnection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAAQAAP__\n\n", "GET / HTTP/1.1", []string{"Host: web"}, ""},
			"A16 length":                     {"POST / HTTP/1.1\nHost: web\nContent-Length: 5\n\nhello", "POST / HTTP/1.1", []string{"Content-Length: 5", "Host: web"}, "hello"},
			"A16 chunks":                     {"POST / HTTP/1.1\nHost: web\nTransfer-Encoding: chunked\n\n5\nhello\n0\n\n", "POST / HTTP/1.1", []string{"Host: web", "Transfer-Encoding: chunked"}, "hello"},
			"A17 nothing is added":           {"DELETE / HTTP/1.1\nHost: web\n\n", "DELETE / HTTP/1.1", []string{"Host: web"}, ""},
			"A18 length of 0":                {"POST / HTTP/1.1\nHost: web\nContent-Length: 0\n\n", "POST / HTTP/1.1", []string{"Content-Length: 0", "Host: web"}, ""},
			"A23 HTTP/1.0 without Host":      {"GET /a HTTP/1.0\n\n", "GET /a HTTP/1.0", []string{}, ""},
			"G5 a forged identity is no one": {"GET / HTTP/1.1\nHost: web\nl5d-client-id: me\n\n", "GET / HTTP/1.1", []string{"Host: web"}, ""},
		} {
			t.Run(name, func(t *testing.T) {
				first, fields, body := dialWire(t, m.a.Addr).ask(t, tt.sent)
				require.Equal(t, tt.first[strings.LastIndex(tt.first, " ")+1:]+" 200 OK", first, fields)
				r := <-got
				assert.Equal(t, tt.first, r.first)
				// HTTP/2 has no requests without an authority, so the proxy sends the address
				// instead.
				r.fields = slices.DeleteFunc(r.fields, func(f string) bool { return f == "Host: "+m.b.Inbound })
				assert.ElementsMatch(t, proven(tt.fields), r.fields)
				assert.Equal(t, tt.body, r.body)
				assert.Contains(t, fields, "Content-Length: 2")
				assert.Equal(t, "ok", body)
			})
		}
	})
}

// proven returns fields with the headers that the proxies add: the client's identity, and the name
// that its proxy balanced.
func proven(fields []string) []string {
	return append(append([]string{}, fields...), "L5d-Client-Id: "+clientName, "L5d-Dst-Canonical: "+webName)
}

// Responses arrive at the client unchanged.
func TestA8ToA21ResponsesMesh(t *testing.T) {
	t.Parallel()
	hinted(t, func(t *testing.T, hints ...func(*destination.WeightedAddr)) {
		for name, tt := range map[string]struct {
			method, answer, first string
			fields                []string
			body                  string
		}{
			"A8 hop-by-hop": {
				"GET", "HTTP/1.1 200 OK\r\nConnection: X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 1\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok",
				"200 OK", []string{"Content-Length: 2"}, "ok",
			},
			"A12 l5d-orig-proto": {"GET", "HTTP/1.1 200 OK\r\nl5d-orig-proto: HTTP/1.0\r\nContent-Length: 2\r\n\r\nok", "200 OK", []string{"Content-Length: 2"}, "ok"},
			"A18 length of 0":    {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "200 OK", []string{"Content-Length: 0"}, ""},
			"A19 204":            {"GET", "HTTP/1.1 204 No Content\r\n\r\n", "204 No Content", []string{}, ""},
			"A19 304":            {"GET", "HTTP/1.1 304 Not Modified\r\n\r\n", "304 Not Modified", []string{}, ""},
			"A20 HEAD":           {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", "200 OK", []string{"Content-Length: 500"}, ""},
			"A21 to the end":     {"GET", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end", "200 OK", []string{"Transfer-Encoding: chunked"}, "to the end"},
		} {
			t.Run(name, func(t *testing.T) {
				up, _ := application(t, tt.answer)
				m := newMesh(t, up, hints...)
				first, fields, body := dialWire(t, m.a.Addr).ask(t, tt.method+" / HTTP/1.1\nHost: web\n\n")
				assert.Equal(t, "HTTP/1.1 "+tt.first, first)
				assert.Equal(t, tt.fields, fields)
				assert.Equal(t, tt.body, body)
			})
		}
	})
}

func TestA2BytesMesh(t *testing.T) {
	m := newMesh(t, shouting(t, ""))
	w := dialWire(t, m.a.Addr)
	say(w, "\x00 this is no HTTP, and is more than 14 bytes")
	w.hear(t, strings.ToUpper("\x00 this is no HTTP, and is more than 14 bytes"))
	converse(t, w)
}

func TestA11UpgradeMesh(t *testing.T) {
	const asked = "GET / HTTP/1.1\nHost: web\nConnection: Upgrade\nUpgrade: websocket\n\n"
	up, heads := tunnelled(t, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	m := newMesh(t, up, speaksH2)
	w := dialWire(t, m.a.Addr)
	first, fields, _ := w.ask(t, asked)
	assert.Equal(t, "HTTP/1.1 101 Switching Protocols", first)
	assert.Equal(t, []string{"Connection: Upgrade", "Upgrade: websocket"}, fields)
	head := <-heads
	assert.Contains(t, head, "Connection: Upgrade\n")
	assert.Contains(t, head, "Upgrade: websocket\n")
	assert.Contains(t, head, "L5d-Client-Id: "+clientName+"\n")
	converse(t, w)
}

func TestA14ConnectMesh(t *testing.T) {
	up, heads := tunnelled(t, "HTTP/1.1 200 Connection established\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n")
	m := newMesh(t, up, speaksH2)
	w := dialWire(t, m.a.Addr)
	first, fields, _ := w.ask(t, "CONNECT web:443 HTTP/1.1\nHost: web:443\n\n")
	assert.Equal(t, "HTTP/1.1 200 Connection established", first)
	assert.Empty(t, fields)
	assert.True(t, strings.HasPrefix(<-heads, "CONNECT web:443 HTTP/1.1\n"))
	converse(t, w)
}

func TestA15InvalidConnectMesh(t *testing.T) {
	m := newMesh(t, conntest.Serve(t, func(int, net.Conn) { t.Error("it went through") }), speaksH2)
	for _, sent := range []string{
		"CONNECT / HTTP/1.1\nHost: web\n\n", "CONNECT http://web/ HTTP/1.1\nHost: web\n\n",
		"CONNECT web:80 HTTP/1.0\n\n", "GET web:80 HTTP/1.1\nHost: web:80\n\n",
	} {
		first, _, _ := dialWire(t, m.a.Addr).ask(t, sent)
		assert.Contains(t, first, " 400 Bad Request", sent)
	}
}

// The application's port refuses connections. With several endpoints, one endpoint's error does not
// close the client's connection. With a single endpoint it does.
func TestA22ConnectionRefusedMesh(t *testing.T) {
	hinted(t, func(t *testing.T, hints ...func(*destination.WeightedAddr)) {
		m := newMesh(t, freeAddr(t), hints...)
		w := dialWire(t, m.a.Addr)
		for range 2 { // on the same connection
			first, fields, _ := w.ask(t, "GET / HTTP/1.1\nHost: web\n\n")
			assert.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
			assert.Equal(t, []string{"Content-Length: 0"}, fields, "only the proxy receives the cause")
		}

		m = meshOf(t, freeAddr(t))
		m.ctl.profile(service, &destination.DestinationProfile{
			Endpoint: endpointAt(m.b.Inbound, append(hints, proves(serverName))...),
		})
		first, fields, _ := dialWire(t, m.a.Addr).ask(t, "GET / HTTP/1.1\nHost: web\n\n")
		assert.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
		assert.Equal(t, []string{"Connection: close", "Content-Length: 0"}, fields)
	})
}

func TestA24ConnectionReuseMesh(t *testing.T) {
	t.Parallel()
	hinted(t, func(t *testing.T, hints ...func(*destination.WeightedAddr)) {
		up, got := application(t, okAnswer)
		m := newMesh(t, up, hints...)
		w := dialWire(t, m.a.Addr)
		for range 3 {
			w.ask(t, "GET / HTTP/1.1\nHost: web\n\n")
			assert.Zero(t, (<-got).conn)
		}
	})
}

func TestA25RequestsWithoutHostMesh(t *testing.T) {
	t.Parallel()
	hinted(t, func(t *testing.T, hints ...func(*destination.WeightedAddr)) {
		up, got := application(t, okAnswer)
		m := newMesh(t, up, hints...)
		conns := map[int]bool{}
		for range 3 {
			dialWire(t, m.a.Addr).ask(t, "GET / HTTP/1.0\n\n")
			conns[(<-got).conn] = true
		}
		assert.Len(t, conns, 3)
	})
}

func TestHTTP2Mesh(t *testing.T) {
	m := newMesh(t, backend(t, "app"), speaksH2)
	rsp, err := h2Client(t, m.a.Addr).Post("http://web.example/path?q=1", "text/plain", strings.NewReader("hello"))
	require.NoError(t, err)
	defer rsp.Body.Close()
	assert.Equal(t, http.StatusOK, rsp.StatusCode)
	assert.Equal(t, 2, rsp.ProtoMajor)
}
