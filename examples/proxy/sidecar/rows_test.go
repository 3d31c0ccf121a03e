package sidecar_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2" //nolint:depguard // its Framer: net/http exports none

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// bothWays runs a row through the outbound side of a proxy and through the
// inbound side of another, each of whose connections are for addr.
func bothWays(t *testing.T, addr string, test func(t *testing.T, proxy string), change ...func(*sidecar.Config)) {
	t.Helper()
	tn := newTown(t, newScript(t).addr, append([]func(*sidecar.Config){func(c *sidecar.Config) {
		c.Outbound.Origin, c.Settings.Inbound.Origin = fixed(addr), fixed(addr)
	}}, change...)...)
	t.Run("outbound", func(t *testing.T) { test(t, tn.Addr) })
	t.Run("inbound", func(t *testing.T) { test(t, tn.Inbound) })
}

func TestA1HTTP1OutAndIn(t *testing.T) {
	bothWays(t, backend(t, "app"), func(t *testing.T, proxy string) {
		first, _, body := dialWire(t, proxy).ask(t, "POST /a HTTP/1.1\nHost: web\nContent-Length: 5\n\nhello")
		require.Equal(t, "HTTP/1.1 200 OK", first)
		require.Equal(t, "app web /a hello", body)
	})
}

// The address is no service (A3), and what is spoken is no HTTP.
func TestA2AndA3BytesOutAndIn(t *testing.T) {
	bothWays(t, shouting(t, ""), func(t *testing.T, proxy string) {
		w := dialWire(t, proxy)
		say(w, "\x00 more than 14 bytes of no HTTP")
		w.hear(t, strings.ToUpper("\x00 more than 14 bytes of no HTTP"))
		converse(t, w)
	})
}

// Where nobody looks, the server may speak first.
func TestA4AndA5TheServerSpeaksFirst(t *testing.T) {
	up := shouting(t, "220 hello")
	port := netip.MustParseAddrPort(up).Port()
	bothWays(t, up, func(t *testing.T, proxy string) {
		w := dialWire(t, proxy)
		w.hear(t, "220 hello")
		converse(t, w)
	}, func(c *sidecar.Config) {
		only := settings.Ports{{First: port, Last: port}}
		c.Outbound.OpaquePorts, c.Settings.Inbound.OpaquePorts = only, only
	})
}

// TLS that is for the application goes there as it is, and the server is heard.
func TestA4TLSOfTheApplicationPasses(t *testing.T) {
	a := newAuthority(t, everybody)
	const app = "app.cluster.local"
	up := accepting(t, func(_ int, conn net.Conn) {
		secure := tls.Server(conn, a.of(t, app).Server())
		say(secure, "220 hello")
		_, _ = io.Copy(io.Discard, secure)
	})
	tn := newTown(t, newScript(t).addr, a.identified(t, serverName), func(c *sidecar.Config) {
		c.Outbound.Origin, c.Settings.Inbound.Origin = fixed(up), fixed(up)
	})
	for _, proxy := range []string{tn.Addr, tn.Inbound} {
		conn, err := net.Dial("tcp", proxy)
		require.NoError(t, err)
		newWire(t, tls.Client(conn, a.of(t, clientName).Client(app, app))).hear(t, "220 hello")
	}
}

// The server's connection is closed with the client's, also while it is idle.
func TestA6TheServerIsClosedWithTheClient(t *testing.T) {
	ended := make(chan struct{}, 2)
	up := accepting(t, func(_ int, conn net.Conn) {
		_, _ = io.Copy(conn, conn)
		ended <- struct{}{}
	})
	bothWays(t, up, func(t *testing.T, proxy string) {
		w := dialWire(t, proxy)
		say(w, "\x00 more than 14 bytes of no HTTP")
		w.hear(t, "\x00 more than 14 bytes of no HTTP")
		require.NoError(t, w.Close())
		select {
		case <-ended:
		case <-time.After(soon):
			require.Fail(t, "the server's connection is open")
		}
	})
}

func TestA7LoopIs502(t *testing.T) {
	tn := newTown(t, newScript(t).addr)
	first, fields, _ := dialWire(t, tn.Addr).ask(t, "GET / HTTP/1.1\nHost: "+tn.Addr+"\n\n")
	require.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
	require.Contains(t, strings.Join(fields, "\n"), "loop")
}

// A request waits while connections are refused, and succeeds.
func TestA26SuccessComesLate(t *testing.T) {
	spoken(t, func(t *testing.T, ask func(testing.TB, string) (int, string)) {
		ctl, tn := balanced(t, func(c *sidecar.Config) { c.Outbound.HTTPQueue.FailFast = soon })
		up := refused(t)
		answer := later(t, ask, tn.Addr)
		ctl.next(t, webName).add(t, endpointAt(up))
		control := h1Client(t, tn.Admin)
		require.Eventually(t, func() bool {
			_, tree := get(t, control, "http://"+tn.Admin+"/stack")
			return strings.Contains(tree, "connection refused")
		}, soon, tick)
		l, err := net.Listen("tcp", up)
		require.NoError(t, err)
		srv := &http.Server{
			Protocols: new(http.Protocols),
			Handler:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { say(w, "late") }),
		}
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		t.Cleanup(func() {
			srv.Close()
			<-served
		})
		require.Equal(t, "OK late", <-answer)
	})
}

// resetting is an application that resets every request of HTTP/2.
func resetting(t testing.TB, code http2.ErrCode) (addr string) {
	t.Helper()
	return accepting(t, func(_ int, conn net.Conn) {
		in := bufio.NewReader(conn)
		if _, err := io.ReadFull(in, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(conn, in)
		if f.WriteSettings() != nil {
			return
		}
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.HeadersFrame:
				err = f.WriteRSTStream(frame.StreamID, code)
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					err = f.WriteSettingsAck()
				}
			case *http2.PingFrame:
				if !frame.IsAck() {
					err = f.WritePing(true, frame.Data)
				}
			}
			if err != nil {
				return
			}
		}
	})
}

// A reset is answered with 502, through one proxy and through two. linkerd's
// proxy resets the stream of the client with the same code, which no server of
// net/http can choose.
func TestA28AResetIs502(t *testing.T) {
	up := resetting(t, http2.ErrCodeEnhanceYourCalm)
	two := newMesh(t, up, speaksH2)
	one := newTown(t, two.ctl.addr, func(c *sidecar.Config) { c.Outbound.Origin = fixed(up) })
	for name, proxy := range map[string]string{"one": one.Addr, "two": two.a.Addr} {
		t.Run(name, func(t *testing.T) {
			status, _ := get(t, h2Client(t, proxy), "http://web.example/")
			require.Equal(t, http.StatusBadGateway, status)
		})
	}
}

// To a client of HTTP/1, whose request went by HTTP/2 to another proxy, a reset
// is an answer.
func TestA29AResetOfAnUpgradedRequestIs502(t *testing.T) {
	ctl, tn := balanced(t)
	w := dialWire(t, tn.Addr)
	say(w, "GET / HTTP/1.1\r\nHost: web\r\n\r\n")
	ctl.next(t, webName).add(t, endpointAt(resetting(t, http2.ErrCodeInternal), speaksH2))
	rsp, err := http.ReadResponse(w.in, nil)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Equal(t, http.StatusBadGateway, rsp.StatusCode)
}

// goodbyes tells of the GOAWAY frames of a connection that is read.
type goodbyes struct {
	net.Conn
	head []byte
	skip int
	seen chan struct{} // room for all that come
}

func (g *goodbyes) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if g.skip > 0 {
			k := min(g.skip, len(rest))
			g.skip, rest = g.skip-k, rest[k:]
			continue
		}
		k := min(9-len(g.head), len(rest))
		g.head, rest = append(g.head, rest[:k]...), rest[k:]
		if len(g.head) == 9 {
			g.skip = int(g.head[0])<<16 | int(g.head[1])<<8 | int(g.head[2])
			if http2.FrameType(g.head[3]) == http2.FrameGoAway {
				g.seen <- struct{}{}
			}
			g.head = g.head[:0]
		}
	}
	return n, err
}

// held is an application whose answers to /held begin at once and end when they
// are let; all others end at once.
func held(t testing.TB) (addr string, began <-chan struct{}, let func()) {
	t.Helper()
	came, end := make(chan struct{}, 100), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		say(w, "begun ")
		if r.URL.Path == "/held" {
			_ = http.NewResponseController(w).Flush()
			came <- struct{}{}
			<-end
		}
		say(w, "done "+string(body))
	}))
	let = sync.OnceFunc(func() { close(end) })
	t.Cleanup(srv.Close)
	t.Cleanup(let)
	return srv.Listener.Addr().String(), came, let
}

// The streams of HTTP/2 that are open when the end begins are finished, and the
// client is told to open no more.
func TestF1HTTP2IsToldAndFinished(t *testing.T) {
	for name, side := range map[string]func(*sidecar.Proxy) string{
		"outbound": func(p *sidecar.Proxy) string { return p.Addr }, "inbound": func(p *sidecar.Proxy) string { return p.Inbound },
	} {
		t.Run(name, func(t *testing.T) {
			const streams = 12
			up, began, let := held(t)
			p, stop, ended := run(t, newScript(t).addr, func(c *sidecar.Config) {
				c.Outbound.Origin, c.Settings.Inbound.Origin = fixed(up), fixed(up)
				c.Shutdown.Grace = 2 * soon
			})
			told := make(chan struct{}, 10)
			tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, side(p))
				return &goodbyes{Conn: conn, seen: told}, err
			}}
			tr.Protocols.SetUnencryptedHTTP2(true)
			t.Cleanup(tr.CloseIdleConnections)
			c := &http.Client{Transport: tr}
			answers := make(chan string, streams)
			for range streams {
				go func() {
					rsp, err := c.Post("http://web.example/held", "text/plain", strings.NewReader("hello"))
					if err != nil {
						answers <- err.Error()
						return
					}
					defer rsp.Body.Close()
					body, err := io.ReadAll(rsp.Body)
					answers <- string(body) + errorText(err)
				}()
			}
			for range streams {
				<-began
			}
			stop()
			<-told
			let()
			for range streams {
				require.Equal(t, "begun done hello", <-answers)
			}
			require.NoError(t, <-ended)
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return " " + err.Error()
}

// Of HTTP/1 connections the idle one is closed, and the other after its answer.
func TestF2HTTP1IsClosedAfterItsAnswer(t *testing.T) {
	up, began, let := held(t)
	p, stop, ended := run(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Outbound.Origin = fixed(up)
		c.Shutdown.Grace = 2 * soon
	})
	idle, active := dialWire(t, p.Addr), dialWire(t, p.Addr)
	first, _, _ := idle.ask(t, "GET / HTTP/1.1\nHost: web\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)
	say(active, "GET /held HTTP/1.1\r\nHost: web\r\n\r\n")
	<-began
	stop()
	idle.over(t)
	select {
	case err := <-ended:
		require.Fail(t, "it has ended", "%v", err)
	default:
	}
	let()
	rsp, err := http.ReadResponse(active.in, nil)
	require.NoError(t, err)
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, "begun done ", string(body))
	active.over(t)
	require.NoError(t, <-ended)
}

// Bytes go on both ways after the end has begun, and the process waits.
func TestF3TCPIsWaitedFor(t *testing.T) {
	up := shouting(t, "")
	p, stop, ended := run(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Outbound.Origin = fixed(up)
		c.Shutdown.Grace = 2 * soon
	})
	w := dialWire(t, p.Addr)
	say(w, "\x00 more than 14 bytes of no HTTP")
	w.hear(t, strings.ToUpper("\x00 more than 14 bytes of no HTTP"))
	stop()
	require.Eventually(t, func() bool { // nothing more is accepted
		conn, err := net.Dial("tcp", p.Addr)
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	}, soon, tick)
	say(w, "still")
	w.hear(t, "STILL")
	select {
	case err := <-ended:
		require.Fail(t, "it has ended", "%v", err)
	default:
	}
	converse(t, w)
	require.NoError(t, <-ended)
}

// What both proxies of a mesh have counted of a request, and what anybody may
// read of it.
func TestH1AndH6BothSidesCount(t *testing.T) {
	m := newMesh(t, backend(t, "app"), speaksH2)
	w := dialWire(t, m.a.Addr)
	first, _, _ := w.ask(t, "GET / HTTP/1.1\nHost: web.example\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)
	require.NoError(t, w.Close())

	for p, want := range map[*town][]string{
		m.a: {
			`request_total{authority="web.example:80",direction="outbound",`, `server_id="` + serverName + `"`,
			`response_total{authority="web.example:80",classification="success",direction="outbound",`,
			`tcp_open_total{direction="outbound",`, `tcp_close_total{direction="outbound",`, `tcp_read_bytes_total{`, `tcp_write_bytes_total{`,
			`tcp_open_connections{`, `process_start_time_seconds `, // H5
		},
		m.b: {
			`request_total{client_id="` + clientName + `",direction="inbound",`,
			`response_total{classification="success",client_id="` + clientName + `",direction="inbound",`,
			`response_latency_ms_bucket{`, // H2
			`tcp_open_total{`, `peer="src"`, `peer="dst"`,
		},
	} {
		control := h1Client(t, p.Admin)
		var text string
		assert.Eventually(t, func() bool { // the end of a connection is counted a little later
			_, text = get(t, control, "http://"+p.Admin+"/metrics")
			for _, part := range want {
				if !strings.Contains(text, part) {
					return false
				}
			}
			return true
		}, soon, tick)
		for _, part := range want {
			require.Contains(t, text, part)
		}
		for line := range strings.Lines(text) { // H4
			require.NotContains(t, line, ",,")
			require.NotContains(t, line, ",}")
			require.NotContains(t, line, "{,")
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.Admin+"/metrics", http.NoBody) // H7
		require.NoError(t, err)
		req.Header.Set("Accept-Encoding", "gzip")
		rsp, err := control.Do(req)
		require.NoError(t, err)
		require.Equal(t, "gzip", rsp.Header.Get("Content-Encoding"))
		packed, err := gzip.NewReader(rsp.Body)
		require.NoError(t, err)
		unpacked, err := io.ReadAll(packed)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.Contains(t, string(unpacked), "request_total{")
	}
}

// Connections to an address that is none of the pod's are refused, and counted.
func TestH8AForeignAddressIsCounted(t *testing.T) {
	tn := newTown(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Settings.Inbound.Origin = fixed(service)
		c.Settings.Inbound.IPs = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	})
	w := dialWire(t, tn.Inbound)
	say(w, "GET / HTTP/1.1\r\nHost: web\r\n\r\n")
	_, err := w.in.ReadByte()
	require.Error(t, err)
	control := h1Client(t, tn.Admin)
	require.Eventually(t, func() bool {
		_, metrics := get(t, control, "http://"+tn.Admin+"/metrics")
		return strings.Contains(metrics, "inbound_tcp_errors_total{")
	}, soon, tick)
}

// A split is added, shared, weighed and removed while requests are sent.
func TestD1ToD4SplitsMoveTraffic(t *testing.T) {
	ctl := newScript(t)
	tn := newTown(t, ctl.addr, toService)
	over := func(weights map[string]uint32) {
		p := &destination.DestinationProfile{FullyQualifiedName: "apex.example"}
		for name, weight := range weights {
			p.DstOverrides = append(p.DstOverrides, &destination.WeightedDst{Authority: name + ".example:80", Weight: weight})
		}
		ctl.profile(service, p)
	}
	over(nil)
	ends := map[string]string{"apex.example:80": backend(t, "apex"), "one.example:80": backend(t, "one"), "two.example:80": backend(t, "two")}
	done := make(chan struct{})
	answering := make(chan struct{})
	go func() {
		defer close(answering)
		for {
			select {
			case q := <-ctl.asked:
				q.add(t, endpointAt(ends[q.target])) //nolint:testifylint // it only fails where the test is broken
			case <-done:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-answering
	})
	c := tn.client(t)
	seen := func() map[string]bool { // by whom
		all := map[string]bool{}
		for range 40 {
			status, body := get(t, c, "http://web.example/")
			require.Equal(t, http.StatusOK, status)
			name, _, _ := strings.Cut(body, " ")
			all[name] = true
		}
		return all
	}
	for name, tt := range []struct {
		weights map[string]uint32
		want    map[string]bool
	}{
		{nil, map[string]bool{"apex": true}},
		{map[string]uint32{"one": 1}, map[string]bool{"one": true}},                        // D1
		{map[string]uint32{"one": 1, "two": 1}, map[string]bool{"one": true, "two": true}}, // D2
		{map[string]uint32{"one": 1, "two": 0}, map[string]bool{"one": true}},              // D3
		{map[string]uint32{"one": 0, "two": 0}, map[string]bool{"apex": true}},             // D3
		{map[string]uint32{"two": 1}, map[string]bool{"two": true}},                        // D1
		{nil, map[string]bool{"apex": true}},                                               // D4
	} {
		over(tt.weights)
		require.Eventually(t, func() bool { return assert.ObjectsAreEqual(tt.want, seen()) }, soon, tick, name)
	}
}
