package httplayer

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
)

// The rows of tests.md A: the messages between a client and an application
// through one proxy, and through two that have HTTP/2 between them.

// oneProxy is a proxy in front of up.
func oneProxy(t testing.TB, up string, opts ...EndpointOption) (addr string) {
	t.Helper()
	return serve(t, Handler(endpoint(t, up, opts...), WithConnect()))
}

// twoProxies is an outbound proxy, and behind it an inbound one, in front of
// up. opts are for the connections to up.
func twoProxies(t testing.TB, up string, opts ...EndpointOption) (addr string) {
	t.Helper()
	inbound := serve(t, Handler(DowngradeOrigProto()(endpoint(t, up, opts...)), WithConnect(), WithErrorHeaders(true)))
	outbound := ProxyErrors(nil, true)(UpgradeOrigProto()(endpoint(t, inbound, WithHTTP2())))
	return serve(t, Handler(outbound, WithConnect()))
}

// oneAndTwo runs a row through one proxy and through two.
func oneAndTwo(t *testing.T, test func(t *testing.T, through func(t testing.TB, up string, opts ...EndpointOption) string)) {
	t.Run("one", func(t *testing.T) { test(t, oneProxy) })
	t.Run("two", func(t *testing.T) { test(t, twoProxies) })
}

// receivedRequest is a request as an application received it.
type receivedRequest struct {
	conn   int // which connection it came by
	first  string
	fields []string
	body   string
}

// application answers every request with the bytes of answer and reports the received
// requests. It closes a connection after a response with Connection: close.
func application(t testing.TB, answer string) (addr string, got <-chan receivedRequest) {
	t.Helper()
	out := make(chan receivedRequest, 100)
	addr = conntest.Serve(t, func(n int, conn net.Conn) {
		var bytes bytes.Buffer
		in := bufio.NewReader(io.TeeReader(conn, &bytes))
		for {
			bytes.Reset()
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			first, fields := head(strings.ReplaceAll(bytes.String(), "\r\n", "\n"))
			out <- receivedRequest{n, first, fields, string(body)}
			say(conn, answer)
			if strings.Contains(answer, "Connection: close") || req.ProtoMinor == 0 {
				return
			}
		}
	})
	return addr, out
}

// wireClient is a client that sends arbitrary bytes.
type wireClient struct {
	net.Conn
	t     testing.TB
	in    *bufio.Reader
	bytes bytes.Buffer
}

func wireTo(t testing.TB, addr string) *wireClient {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	c := &wireClient{Conn: conn, t: t}
	c.in = bufio.NewReader(io.TeeReader(conn, &c.bytes))
	return c
}

// ask sends a request, lines ended by \n, and returns the bytes of the answer's
// first line, its fields in order, and its body.
func (c *wireClient) ask(sent string) (first string, fields []string, body string) {
	c.t.Helper()
	return c.askEarly(sent, "")
}

// askEarly is ask, with bytes that do not wait for the answer.
func (c *wireClient) askEarly(sent, early string) (first string, fields []string, body string) {
	c.t.Helper()
	say(c, strings.ReplaceAll(sent, "\n", "\r\n")+early)
	method, _, _ := strings.Cut(sent, " ")
	c.bytes.Reset()
	rsp, err := http.ReadResponse(c.in, &http.Request{Method: method})
	require.NoError(c.t, err)
	if rsp.StatusCode != http.StatusSwitchingProtocols && (method != http.MethodConnect || rsp.StatusCode/100 != 2) {
		b, err := io.ReadAll(rsp.Body)
		require.NoError(c.t, err)
		body = string(b)
	}
	first, fields = head(strings.ReplaceAll(c.bytes.String(), "\r\n", "\n"))
	return first, fields, body
}

// over asserts that the proxy has closed the connection.
func (c *wireClient) over() {
	c.t.Helper()
	rest, err := io.ReadAll(c.in)
	require.NoError(c.t, err)
	require.Empty(c.t, string(rest))
}

// undated is fields without Date, which a proxy adds to answers.
func undated(fields []string) []string {
	out := make([]string, 0, len(fields))
	for _, f := range fields {
		if !strings.HasPrefix(f, "Date: ") {
			out = append(out, f)
		}
	}
	return out
}
