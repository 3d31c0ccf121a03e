package httplayer

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// pages is a log that others wait for.
type pages struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func (p *pages) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.more <- struct{}{} }()
	return p.text.Write(b)
}

// next waits for a line.
func (p *pages) next(t *testing.T) string {
	t.Helper()
	select {
	case <-p.more:
	case <-time.After(patience):
		require.Fail(t, "no line")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	line, err := p.text.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSuffix(line, "\n")
}

func newPages() *pages { return &pages{more: make(chan struct{}, 100)} }

func TestAccessLogJSON(t *testing.T) {
	log := newPages()
	f := servingBy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
		say(w, strings.Repeat("x", int(2*n)))
	}), WithAccessLog(log, JSONLog, func(*http.Request) string { return "web.default" }))
	for _, h2 := range []bool{false, true} {
		req := request(t, "POST", "http://"+f.addr+"/a?b=\"c", "hello")
		req.Header.Set("User-Agent", "a \"b\"\u2028")
		req.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		began := time.Now()
		rsp, err := client(t, h2).Do(req)
		require.NoError(t, err)
		read(t, rsp)
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(log.next(t)), &got))
		total := time.Since(began)
		version := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[h2]
		for _, name := range []string{"total_ns", "processing_ns"} {
			ns := got[name].(float64)
			assert.Positive(t, ns)
			assert.LessOrEqual(t, time.Duration(ns), total)
			delete(got, name)
		}
		at, err := time.Parse(time.RFC3339Nano, got["timestamp"].(string))
		require.NoError(t, err)
		assert.WithinRange(t, at, began.Add(-time.Millisecond), time.Now())
		delete(got, "timestamp")
		assert.Contains(t, got["client.addr"], "127.0.0.1:")
		delete(got, "client.addr")
		assert.Equal(t, map[string]any{
			"client.id": "web.default", "client.ip": "127.0.0.1", "host": f.addr, "method": "POST", "uri": "http://" + f.addr + "/a?b=\"c",
			"version": version, "status": 201.0, "request_bytes": 5.0, "response_bytes": 10.0,
			"user_agent": "a \"b\"\u2028", "trace_id": "0af7651916cd43dd8448eb211c80319c",
		}, got)
	}
}

func TestAccessLogApache(t *testing.T) {
	log := newPages()
	f := servingBy(t, http.HandlerFunc(shapes), WithAccessLog(log, ApacheLog, nil))
	rsp, err := client(t, true).Get("http://" + f.addr + "/length")
	require.NoError(t, err)
	read(t, rsp)
	assert.Regexp(t, `^127\.0\.0\.1:\d+ - - \[\d{4}-\d\d-\d\dT[\d:.]+Z\] "GET http://`+regexp.QuoteMeta(f.addr)+`/length HTTP/2\.0" 200 5$`,
		log.next(t))
}

// The common and the combined log format have the address of the client, the request line that it sent,
// and "-" for what is missing.
func TestAccessLogCommon(t *testing.T) {
	at := time.Date(2022, 8, 23, 20, 28, 20, 7, time.FixedZone("", -2*3600))
	r := httptest.NewRequest("GET", "/a?b=\"c", http.NoBody)
	r.RemoteAddr, r.Header = "[2001:db8::1]:4000", http.Header{"Referer": {"https://a.example/"}, "User-Agent": {"curl \"8\""}}
	x := &Report{Request: r, Status: 404, Began: at, Sent: 7}
	const line = `2001:db8::1 - - [23/Aug/2022:20:28:20 -0200] "GET /a?b=\"c HTTP/1.1" 404 7`
	assert.Equal(t, line, string(formatOf(CommonLog)(nil, x, "")))
	assert.Equal(t, line+` "https://a.example/" "curl \"8\""`, string(formatOf(CombinedLog)(nil, x, "")))
	x.Facts.Client, x.Sent = netip.MustParseAddr("10.0.0.7"), -1
	x.Request = &http.Request{Proto: "HTTP/1.1"} // a timeout before the request line
	assert.Equal(t, `10.0.0.7 - web.id [23/Aug/2022:20:28:20 -0200] "-" 404 - "-" "-"`, string(formatOf(CombinedLog)(nil, x, "web.id")))
}

// A JSON line has the selected fields alone.
func TestAccessLogFields(t *testing.T) {
	x := &Report{Request: httptest.NewRequest("GET", "/", http.NoBody), Status: 204}
	line := func(fields ...string) string { return string(formatOf(JSONLogOf(fields...))(nil, x, "")) }
	assert.JSONEq(t, `{"method":"GET","status":204}`, line("status", "route", "method"))
	assert.Equal(t, `{}`, line("route"))
	assert.Equal(t, line(), line(JSONLogFields()...))
	assert.PanicsWithValue(t, `httplayer: JSONLogOf: unknown field "code"`, func() { JSONLogOf("code") })
}

// A tunnel is logged at its end. A handler that panics is logged.
func TestAccessLogTunnelAndPanic(t *testing.T) {
	log := newPages()
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic(http.ErrAbortHandler)
		}
		switchToEcho(w, r)
	})
	f := servingBy(t, h, WithAccessLog(log, ApacheLog, nil))
	_, err := client(t, false).Get("http://" + f.addr + "/panic")
	require.Error(t, err)
	assert.Contains(t, log.next(t), "/panic HTTP/1.1\" 500 0")
	rsp, tunnel := upgraded(t, endpoint(t, f.addr))
	assert.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
	say(tunnel, "hello")
	require.NoError(t, tunnel.Close())
	assert.Regexp(t, `HTTP/1.1" 101 -$`, log.next(t))
}

// A CONNECT request is not logged as an upgrade (101), and layers above a handler do not
// see one.
func TestAccessLogConnect(t *testing.T) {
	up, _ := tunnelled(t, established)
	log, outcomes := newPages(), make(chan layer.Outcome[*http.Response], 1)
	h := Middleware(watched(outcomes))(Handler(endpoint(t, up), WithConnect()))
	c := wireTo(t, servingBy(t, h, WithAccessLog(log, ApacheLog, nil)).addr)
	say(c, strings.ReplaceAll(connectHead, "\n", "\r\n"))
	rsp, err := http.ReadResponse(c.in, &http.Request{Method: http.MethodConnect})
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	assert.Equal(t, http.StatusOK, rsp.StatusCode)
	converse(t, c, "")
	assert.Contains(t, log.next(t), "\"CONNECT web:443 HTTP/1.1\" 200 -")
	assert.Equal(t, http.StatusOK, (<-outcomes).Response.StatusCode)
}

func TestAccessLogTraces(t *testing.T) {
	for field, want := range map[string]string{
		"X-B3-Traceid": "x", "X-Request-Id": "x", "X-Amzn-Trace-Id": "x", "Traceparent": "", "Other": "",
	} {
		assert.Equal(t, want, traceOf(http.Header{field: {"x"}}), field)
	}
}

// Text from a client cannot add a line or a field.
func FuzzAccessLog(f *testing.F) {
	f.Add("GET", "/a\nb", "c\"d", "e\\", "\x80\xff", "[::1]:1")
	f.Add("GET", "/\u2028\u0085", "\r\n", "\x00", "\x7f", "127.0.0.1:80 - -")
	f.Add("GET", "/", "h", "", "", "[fe80::1%\"\n]:1")
	f.Fuzz(func(t *testing.T, method, target, host, agent, id, addr string) {
		r := httptest.NewRequest("GET", "/", http.NoBody)
		r.Method, r.RequestURI, r.Host, r.RemoteAddr = method, target, host, addr
		r.Header["User-Agent"] = []string{agent}
		x := &Report{Request: r, Status: 200, Began: time.Unix(1, 0), Head: time.Unix(2, 0), Ended: time.Unix(2, 0)}
		line := jsonLine(nil)(nil, x, id)
		var got map[string]any
		require.NoError(t, json.Unmarshal(line, &got))
		fields := 14
		if clientIP(x).IsValid() {
			fields++
		}
		require.Len(t, got, fields)
		require.Equal(t, strings.ToValidUTF8(agent, "\ufffd") == agent, got["user_agent"] == agent)
		for _, line := range [][]byte{line, apacheLine(nil, x, id), combinedLine(nil, x, id)} {
			require.NotContains(t, string(line), "\n")
			require.False(t, bytes.ContainsAny(line, "\r\x00\x1b\x7f\u0085\u2028"))
		}
		require.Regexp(t, `^[^ ]+ [^ ]+ - \[[^]]+\] "([^"\\]|\\.)*" 200 0$`, string(apacheLine(nil, x, id)))
		require.Regexp(t, `^[^ ]+ - [^ ]+ \[[^]]+\] "([^"\\]|\\.)*" 200 0 "-" "([^"\\]|\\.)*"$`, string(combinedLine(nil, x, id)))
	})
}

func BenchmarkAccessLog(b *testing.B) {
	r := httptest.NewRequest("GET", "/api?view=all", http.NoBody)
	r.Host, r.URL.Host = "web.default:80", "web.default:80"
	r.Header.Set("User-Agent", "Go-http-client/1.1")
	x := &Report{Request: r, Status: 200, Response: new(http.Response)}
	for _, format := range []AccessLogFormat{ApacheLog, JSONLog} {
		b.Run(string(format), func(b *testing.B) {
			log := newAccessLog(io.Discard, format, nil)
			b.ReportAllocs()
			for b.Loop() {
				log.log(x)
			}
		})
	}
}
