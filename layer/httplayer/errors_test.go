package httplayer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// statuses is the table of proxy.md §9, as far as there are such errors.
func statuses() map[string]struct {
	err    error
	status int
	code   uint32
	closes bool
} {
	dial := func(cause error) error {
		return &layer.Error{Layer: "endpoint", Endpoint: "a:1", Kind: layer.ErrNotReady,
			Err: &peerError{&net.OpError{Op: "dial", Net: "tcp", Err: cause}}}
	}
	return map[string]struct {
		err    error
		status int
		code   uint32
		closes bool
	}{
		"fail-fast":                {&layer.Error{Layer: "queue", Kind: layer.ErrFailFast, Waited: time.Second, Err: layer.ErrNotReady}, 504, 4, true},
		"fail-fast, refused":       {&layer.Error{Layer: "queue", Kind: layer.ErrFailFast, Err: dial(syscall.ECONNREFUSED)}, 504, 4, true},
		"newcomer in fail-fast":    {&layer.Error{Layer: "queue", Kind: layer.ErrNotReady, Reason: "in fail-fast", Err: dial(syscall.ECONNREFUSED)}, 503, 14, true},
		"and the cause is slow":    {&layer.Error{Layer: "queue", Kind: layer.ErrNotReady, Reason: "in fail-fast", Err: dial(context.DeadlineExceeded)}, 503, 14, true},
		"out of time in a queue":   {&layer.Error{Layer: "queue", Kind: layer.ErrNotReady, Err: context.DeadlineExceeded}, 504, 4, true},
		"timeout, then refused":    {&layer.Error{Layer: "timeout", Kind: layer.ErrTimeout, Err: dial(syscall.ECONNREFUSED)}, 504, 4, true},
		"timeout":                  {&layer.Error{Layer: "timeout", Kind: layer.ErrTimeout, Err: io.ErrUnexpectedEOF}, 504, 4, true},
		"deadline":                 {fmt.Errorf("x: %w", context.DeadlineExceeded), 504, 4, true},
		"connect timeout":          {dial(context.DeadlineExceeded), 504, 4, true},
		"connect timeout, network": {dial(os.ErrDeadlineExceeded), 504, 4, true},
		"connect timeout, kernel":  {dial(os.NewSyscallError("connect", syscall.ETIMEDOUT)), 504, 4, true},
		"refused":                  {&layer.Error{Layer: "limit", Kind: layer.ErrNotReady, Reason: "8 of 8"}, 503, 14, true},
		"closed":                   {layer.ErrClosed, 503, 14, true},
		"closed endpoint":          {&layer.Error{Layer: "endpoint", Endpoint: "a:1", Kind: layer.ErrClosed, Err: context.Canceled}, 503, 14, true},
		"does not exist":           {&layer.Error{Layer: "balance", Kind: layer.ErrNotReady, Reason: "does not exist"}, 503, 14, true},
		"failed, then refused":     {&layer.Error{Layer: "retry", Kind: layer.ErrRetryRejected, Err: &peerError{io.EOF}}, 503, 14, true},
		"connection refused":       {dial(syscall.ECONNREFUSED), 502, 14, true},
		"reset":                    {&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, 502, 14, true},
		"read timeout":             {&net.OpError{Op: "read", Net: "tcp", Err: syscall.ETIMEDOUT}, 502, 14, true},
		"errno":                    {syscall.EPIPE, 502, 14, true},
		"end of file":              {fmt.Errorf("x: %w", io.EOF), 502, 14, true},
		"unexpected end":           {io.ErrUnexpectedEOF, 502, 14, true},
		"anything of an endpoint":  {&layer.Error{Layer: "endpoint", Endpoint: "a:1", Err: &peerError{errors.New("odd")}}, 502, 14, true},
		"caller gone":              {&layer.Error{Layer: "func", Kind: layer.ErrNotReady, Err: context.Canceled}, 502, 1, true},
		"no route":                 {&layer.Error{Layer: "router", Kind: layer.ErrNoRoute}, 404, 5, false},
		"no route, refused":        {fmt.Errorf("%w: %w", layer.ErrNoRoute, layer.ErrNotReady), 404, 5, false},
		"stream refused":           {&peerError{&message.ResetError{Code: message.CodeRefusedStream, Remote: true}}, 502, 14, true},
		"stream cancelled":         {&message.ResetError{Code: message.CodeCancel, Remote: true}, 502, 1, true},
		"calm down":                {&message.ResetError{Code: message.CodeEnhanceYourCalm, Remote: true}, 502, 8, true},
		"not secure enough":        {&message.ResetError{Code: message.CodeInadequateSecurity, Remote: true}, 502, 7, true},
		"stream broken":            {&message.ResetError{Code: 1, Remote: true}, 502, 13, true},
		"rate limit":               {&layer.Error{Layer: "rate", Kind: layer.ErrNotReady, Reason: "10 a second"}, 429, 8, false},
		"rate limit of a key":      {&layer.Error{Layer: "rate_by", Kind: layer.ErrNotReady}, 429, 8, false},
		"queued for a rate limit":  {&layer.Error{Layer: "queue", Kind: layer.ErrNotReady, Err: &layer.Error{Layer: "rate", Kind: layer.ErrNotReady}}, 503, 14, true},
		"injected":                 {&layer.Error{Layer: "chaos", Kind: layer.ErrInjected}, 500, 13, false},
		"injected timeout":         {&layer.Error{Layer: "chaos", Kind: layer.ErrInjected, Err: layer.ErrTimeout}, 504, 4, false},
		"injected refusal":         {&layer.Error{Layer: "chaos", Kind: layer.ErrInjected, Err: layer.ErrNotReady}, 503, 14, false},
		"chosen":                   {&layer.Error{Layer: "chaos", Kind: layer.ErrInjected, Err: &StatusError{Code: 418}}, 418, 2, false},
		"chosen, both":             {&StatusError{Code: 503, GRPC: 9}, 503, 9, false},
		"chosen, not an error":     {&StatusError{Code: 204}, 500, 2, false},
		"chosen, no status":        {&StatusError{Code: 1000}, 500, 2, false},
		"chosen, 400":              {&StatusError{Code: 400}, 400, 13, false},
		"chosen, 401":              {&StatusError{Code: 401}, 401, 16, false},
		"chosen, 403":              {&StatusError{Code: 403}, 403, 7, false},
		"chosen, 404":              {&StatusError{Code: 404}, 404, 12, false},
		"chosen, 429":              {&StatusError{Code: 429}, 429, 14, false},
		"chosen, 504":              {&StatusError{Code: 504}, 504, 14, false},
		"chosen, and closed":       {&StatusError{Code: 400, Close: true}, 400, 13, true},
		"identity required":        {&layer.Error{Layer: "require_id", Err: &IdentityError{Required: "a", Found: "b"}}, 502, 14, true},
		"gateway loop":             {&StatusError{Code: 508, Reason: "gateway loop", Close: true}, 508, 10, true},
		"dispatcher failed":        {&StatusError{Code: 502, Reason: "no backend", Close: true}, 502, 14, true},
		"unauthorized by policy":   {&StatusError{Code: 403, Reason: "unauthorized"}, 403, 7, false},
		"policy's own timeout":     {&StatusError{Code: 504, GRPC: 4}, 504, 4, false},
		"a filter that is invalid": {&StatusError{Code: 500, GRPC: 13, Reason: "invalid filter", Close: true}, 500, 13, true},
		"loop, outbound":           {dial(syscall.ECONNREFUSED), 502, 14, true},
		"anything else":            {errors.New("odd"), 500, 13, true},
	}
}

func TestStatusOf(t *testing.T) {
	for name, tt := range statuses() {
		t.Run(name, func(t *testing.T) {
			status, code := StatusFromError(tt.err)
			assert.Equal(t, tt.status, status)
			assert.Equal(t, tt.code, code)
		})
	}
	status, code := StatusFromError(nil)
	assert.Equal(t, 200, status)
	assert.Zero(t, code)
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = StatusFromError(nil) })) // metrics call it for each request
}

func failing(err error, opts ...HandlerOption) http.Handler {
	svc := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) { return nil, err })
	return Handler(svc, append([]HandlerOption{withErrorHeaders()}, opts...)...)
}

func TestHandlerErrors(t *testing.T) {
	for name, tt := range statuses() {
		t.Run(name, func(t *testing.T) {
			for _, two := range []bool{false, true} {
				proxy := serve(t, failing(tt.err))
				rsp, err := client(t, two).Do(request(t, "POST", "http://"+proxy+"/", "body"))
				if _, resets := asReset(tt.err); resets && two {
					require.ErrorContains(t, err, "stream error")
					continue
				}
				require.NoError(t, err)
				assert.Equal(t, tt.status, rsp.StatusCode)
				assert.Equal(t, "application/problem+json", rsp.Header.Get("Content-Type"))
				assert.Equal(t, tt.err.Error(), rsp.Header.Get("L5d-Proxy-Error"))
				assert.Equal(t, tt.closes, rsp.Header.Get("L5d-Proxy-Connection") == "close")
				if !two {
					assert.Equal(t, tt.closes, rsp.Close)
				}
				assert.Contains(t, read(t, rsp), fmt.Sprintf(`"status":%d`, tt.status))
			}
		})
	}
}

func TestHandlerErrorsGRPC(t *testing.T) {
	for name, tt := range statuses() {
		t.Run(name, func(t *testing.T) {
			proxy := serve(t, failing(tt.err))
			req := request(t, "POST", "http://"+proxy+"/", "body")
			req.Header.Set("Content-Type", "application/grpc+proto")
			rsp, err := client(t, true).Do(req)
			if _, resets := asReset(tt.err); resets {
				require.ErrorContains(t, err, "stream error")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, 200, rsp.StatusCode)
			assert.Equal(t, "application/grpc", rsp.Header.Get("Content-Type"))
			assert.Equal(t, fmt.Sprint(tt.code), rsp.Header.Get("Grpc-Status"))
			message, err := url.PathUnescape(rsp.Header.Get("Grpc-Message"))
			require.NoError(t, err)
			assert.Equal(t, tt.err.Error(), message)
			assert.NotContains(t, rsp.Header, "Content-Length")
			assert.Empty(t, read(t, rsp))
			// A gRPC status needs HTTP/2.
			req = request(t, "POST", "http://"+proxy+"/", "body")
			req.Header.Set("Content-Type", "application/grpc")
			rsp, err = client(t, false).Do(req)
			require.NoError(t, err)
			assert.Equal(t, tt.status, rsp.StatusCode)
			read(t, rsp)
		})
	}
}

// The text of an error has addresses of endpoints. Clients receive it only with
// WithErrorHeaders.
func TestInformationalHeaders(t *testing.T) {
	for name, opts := range map[string][]HandlerOption{
		"default": nil, "off": {WithErrorHeaders("", "")}, "on": {withErrorHeaders()},
	} {
		proxy := serve(t, Handler(endpoint(t, refusedAddr(t)), opts...))
		on := name == "on"
		for _, contentType := range []string{"text/plain", "application/grpc"} {
			req := request(t, "POST", "http://"+proxy+"/", "")
			req.Header.Set("Content-Type", contentType)
			rsp, err := client(t, true).Do(req)
			require.NoError(t, err)
			assert.NotContains(t, read(t, rsp), "127.0.0.1")
			assert.Equal(t, on, strings.Contains(fmt.Sprint(rsp.Header), "127.0.0.1"), "%s: %v", name, rsp.Header)
			assert.Equal(t, on, rsp.Header.Get("L5d-Proxy-Error") != "", name)
			assert.Equal(t, on, rsp.Header.Get("L5d-Proxy-Connection") == "close", name)
			grpc := contentType == "application/grpc"
			if grpc && !on {
				assert.Equal(t, "Bad Gateway", rsp.Header.Get("Grpc-Message"), name)
			}
			assert.Equal(t, grpc, rsp.Header.Get("Grpc-Status") == "14", name)
		}
	}
}

func TestHandlerErrorControlCharacters(t *testing.T) {
	text := "line\r\nX-Injected: 1\x00\x7f 100% ü"
	proxy := serve(t, failing(errors.New(text)))
	rsp, err := client(t, false).Do(request(t, "GET", "http://"+proxy+"/", ""))
	require.NoError(t, err)
	read(t, rsp)
	assert.Equal(t, "line  X-Injected: 1   100% ü", rsp.Header.Get("L5d-Proxy-Error"))
	assert.NotContains(t, rsp.Header, "X-Injected")
	req := request(t, "POST", "http://"+proxy+"/", "")
	req.Header.Set("Content-Type", "application/grpc")
	rsp, err = client(t, true).Do(req)
	require.NoError(t, err)
	read(t, rsp)
	message, err := url.PathUnescape(rsp.Header.Get("Grpc-Message"))
	require.NoError(t, err)
	assert.Equal(t, text, message)
}

func TestHandlerUpstreamErrors(t *testing.T) {
	// The same from end to end, as a client sees it.
	hang := h2Server(t, 0, func(int, *rawH2) {})
	for name, tt := range map[string]struct {
		addr   string
		opts   []EndpointOption
		wrap   func(Service) Service
		status int
		after  int // the status of later requests, if it is another one
	}{
		"connection refused": {addr: refusedAddr(t), status: 502}, // tests.md A22
		"no such host":       {addr: "nowhere.invalid:80", status: 502, opts: []EndpointOption{WithDialContext(noSuchHost)}},
		"silence": {addr: "a:80", status: 504, opts: []EndpointOption{WithConnectTimeout(time.Millisecond), WithDialContext(
			func(ctx context.Context, network, addr string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})}},
		"at capacity": {addr: hang, opts: []EndpointOption{WithHTTP2()}, status: 503},
		"queued too long": {addr: refusedAddr(t), status: 504, after: 503, wrap: func(svc Service) Service {
			return NewStack().Queue(1, time.Millisecond).Service(svc)
		}},
		"out of time": {addr: "a:80", status: 504, wrap: func(Service) Service {
			return NewStack().Timeout(time.Millisecond).Service(serviceFunc(func(ctx context.Context, _ *http.Request) (*http.Response, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}))
		}},
		"reset": {addr: h2Server(t, 10, func(_ int, c *rawH2) { // tests.md A29
			for s := c.request(); s != 0; s = c.request() {
				c.reset(s, 0x2)
			}
		}), opts: []EndpointOption{WithHTTP2()}, status: 502},
		"limit": {addr: "a:80", status: 503, wrap: func(svc Service) Service { return NewStack().Limit(0).Service(svc) }},
		"died":  {addr: rawServer(t, func(_ int, c net.Conn) { c.Read(make([]byte, 10)) }), status: 502},
	} {
		t.Run(name, func(t *testing.T) {
			var svc Service = endpoint(t, tt.addr, tt.opts...)
			if tt.wrap != nil {
				svc = tt.wrap(svc)
			}
			proxy := serve(t, Handler(svc, withErrorHeaders()))
			for i, two := range []bool{false, true} {
				rsp, err := client(t, two).Do(request(t, "POST", "http://"+proxy+"/", "body"))
				if name == "reset" && two { // tests.md A28
					require.ErrorContains(t, err, "INTERNAL_ERROR")
					continue
				}
				require.NoError(t, err)
				want := tt.status
				if tt.after != 0 && i > 0 {
					want = tt.after
				}
				assert.Equal(t, want, rsp.StatusCode, rsp.Header)
				assert.NotEmpty(t, rsp.Header.Get("L5d-Proxy-Error"))
				read(t, rsp)
			}
		})
	}
}

func noSuchHost(_ context.Context, network, addr string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no such host", Name: addr, IsNotFound: true}}
}

func TestHandlerLogs(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, nil))
	h := failing(errors.New("odd"), WithLogger(logger))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://web/a?secret", nil))
	line := out.String()
	for _, want := range []string{"WARN", "method=GET", "authority=web", "path=/a ", "status=500", "err=odd"} {
		assert.Contains(t, line, want)
	}
	assert.NotContains(t, line, "secret")

	out.Reset()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://web/", nil).WithContext(gone))
	assert.Empty(t, out.String(), "a disconnected client is not logged")
}

// Without an option a Handler logs to slog.Default.
func TestHandlerLogsByDefault(t *testing.T) {
	var out bytes.Buffer
	before := slog.Default()                                  //nolint:forbidigo // the default logger is tested
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil))) //nolint:forbidigo // the default logger is tested
	defer slog.SetDefault(before)                             //nolint:forbidigo // the default logger is tested
	h := failing(errors.New("odd"))
	silent := failing(errors.New("odd"), WithLogger(nil))
	for _, h := range []http.Handler{h, silent} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://web/a", nil))
	}
	assert.Equal(t, 1, strings.Count(out.String(), "request failed"), out.String())
}

// Errors that the client caused are logged at level Debug only.
func TestHandlerLogsClientErrorsAtDebug(t *testing.T) {
	for status, level := range map[int]slog.Level{400: slog.LevelDebug, 429: slog.LevelDebug, 499: slog.LevelDebug, 500: slog.LevelWarn, 503: slog.LevelWarn} {
		for _, at := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
			var out bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: at}))
			h := failing(&StatusError{Code: status}, WithLogger(logger))
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://web/", nil))
			assert.Equal(t, level >= at, strings.Contains(out.String(), "level="+level.String()+" msg=\"request failed\""), "%d at %v: %s", status, at, out.String())
		}
	}
}

// A client that repeats a request does not fill the log.
func TestHandlerLogIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		h := failing(errors.New("odd"), WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
		for range 1000 {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://web/", nil))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, 11, strings.Count(out.String(), "\n"))
		assert.Contains(t, out.String(), `msg="repeated message suppressed" message="request failed" count=990`)
	})
}

func TestPercentEncode(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "plain text": "plain text", "100%": "100%25", "a\nb": "a%0Ab", "ü": "%C3%BC", "\x7f~": "%7F~", "\xff": "%FF",
	} {
		assert.Equal(t, want, percentEncode(in))
	}
}

func FuzzPercentEncode(f *testing.F) {
	for _, seed := range []string{"", "a b", "100%", "\x00ü\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		encoded := percentEncode(s)
		if strings.ContainsFunc(encoded, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%q is not printable", encoded)
		}
		if decoded, err := url.PathUnescape(encoded); err != nil || decoded != s {
			t.Fatalf("%q came back as %q, %v", s, decoded, err)
		}
	})
}

// The error of an answer in another protocol names its first bytes.
func TestAnswerNotHTTP(t *testing.T) {
	for name, tt := range map[string]struct {
		answer string
		opts   []EndpointOption
		want   string
	}{
		"HTTP/1.1":   {"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", nil, `the answer is not HTTP: it begins with "SSH-2.0-OpenSSH_9.2p1 De"`},
		"part":       {"HTT", nil, `unexpected EOF after "HTT"`},
		"HTTP/2":     {"\x00\x00\x00\x04\x00\x00\x00\x00\x00", nil, `the answer is not HTTP: it begins with "\x00\x00\x00\x04`},
		"not HTTP/2": {"HTTP/1.1 400 Bad Request\r\n\r\n", []EndpointOption{WithHTTP2()}, "the server does not speak HTTP/2"},
	} {
		t.Run(name, func(t *testing.T) {
			up := conntest.Serve(t, func(_ int, conn net.Conn) {
				_, _ = conn.Read(make([]byte, 1000))
				say(conn, tt.answer)
			})
			_, err := endpoint(t, up, tt.opts...).Call(t.Context(), request(t, "GET", "http://web/", ""))
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func serviceError(err error) Service {
	return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) { return nil, err })
}

// answerOf returns the response of h to a GET, or to another method, by a real server.
func answerOf(t *testing.T, h http.Handler, method string) (*http.Response, string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL, http.NoBody)
	require.NoError(t, err)
	rsp, err := s.Client().Do(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return rsp, string(body)
}

func TestProblem(t *testing.T) {
	quiet := WithLogger(slog.New(slog.DiscardHandler))
	unauthorized := &StatusError{Code: http.StatusUnauthorized, Header: http.Header{"WWW-Authenticate": {"Bearer"}}, Detail: "a token is required"}
	page := &StatusError{Code: http.StatusNotFound, Header: http.Header{"Content-Type": {"text/html"}}, Body: []byte("<h1>none</h1>")}
	for name, tt := range map[string]struct {
		err               error
		status            int
		contentType, body string
	}{
		"rejection": {
			&layer.Error{Layer: "limit", Endpoint: "10.0.0.1:80", Kind: layer.ErrNotReady}, http.StatusServiceUnavailable,
			"application/problem+json", `{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"rejected by limit"}` + "\n",
		},
		"rejection on a retry": {
			&layer.Error{Layer: "retry", Err: &layer.Error{Layer: "breaker", Kind: layer.ErrNotReady}}, http.StatusServiceUnavailable,
			"application/problem+json", `{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"rejected by breaker"}` + "\n",
		},
		"failure": {
			&layer.Error{Layer: "retry", Err: errors.New("10.0.0.1:80 is odd")}, http.StatusInternalServerError,
			"application/problem+json", `{"type":"about:blank","title":"Internal Server Error","status":500}` + "\n",
		},
		"detail": {
			unauthorized, http.StatusUnauthorized,
			"application/problem+json", `{"type":"about:blank","title":"Unauthorized","status":401,"detail":"a token is required"}` + "\n",
		},
		"body": {page, http.StatusNotFound, "text/html", "<h1>none</h1>"},
	} {
		for kind, h := range map[string]http.Handler{
			"Handler":    Handler(serviceError(tt.err), quiet),
			"Middleware": Middleware(func(Service) Service { return serviceError(tt.err) }, quiet)(http.NotFoundHandler()),
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				rsp, body := answerOf(t, h, http.MethodGet)
				assert.Equal(t, tt.status, rsp.StatusCode)
				assert.Equal(t, tt.contentType, rsp.Header.Get("Content-Type"))
				assert.Equal(t, tt.body, body)
				assert.NotContains(t, body, "10.0.0.1")
				head, none := answerOf(t, h, http.MethodHead)
				assert.Empty(t, none)
				assert.EqualValues(t, len(tt.body), head.ContentLength)
			})
		}
	}
	rsp, body := answerOf(t, Handler(serviceError(unauthorized), quiet), http.MethodGet)
	assert.Equal(t, "Bearer", rsp.Header.Get("WWW-Authenticate"))
	assert.True(t, json.Valid([]byte(body)))
	assert.Len(t, unauthorized.Header, 1)
}

// The handler sees every error with its type, and chooses status, headers and body.
func TestErrorHandler(t *testing.T) {
	var seen error
	custom := WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error) {
		seen = err
		http.Error(w, "no "+r.URL.Path, http.StatusTeapot)
	})
	rejection := &layer.Error{Layer: "rate", Kind: layer.ErrNotReady, RetryAfter: 1e9}
	rsp, body := answerOf(t, Handler(serviceError(rejection), custom), http.MethodGet)
	assert.Equal(t, http.StatusTeapot, rsp.StatusCode)
	assert.Equal(t, "no /\n", body)
	assert.Equal(t, "1", rsp.Header.Get("Retry-After"))
	require.ErrorIs(t, seen, layer.ErrNotReady)

	rsp, body = answerOf(t, Handler(serviceError(errors.New("x")), WithErrorHandler(nil), WithLogger(nil)), http.MethodGet)
	assert.Equal(t, http.StatusInternalServerError, rsp.StatusCode)
	assert.Empty(t, body)
	assert.Zero(t, rsp.ContentLength)
}

// A response to an error of CONNECT cannot start a tunnel.
func TestErrorHandlerConnect(t *testing.T) {
	accepts := WithErrorHandler(func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusOK) })
	rsp, _ := answerOf(t, Handler(serviceError(errors.New("x")), accepts, WithConnect(), WithLogger(nil)), http.MethodConnect)
	assert.Equal(t, http.StatusInternalServerError, rsp.StatusCode)
}

// The client receives the retry-after time of a rejection.
func TestHandlerRetryAfter(t *testing.T) {
	refusal := &layer.Error{Layer: "rate", Kind: layer.ErrNotReady, RetryAfter: 1200 * time.Millisecond}
	for name, tt := range map[string]struct {
		err            error
		http, grpc, at string
	}{
		"refused":            {refusal, "2", "1200", ""},
		"queued":             {&layer.Error{Layer: "queue", Kind: layer.ErrNotReady, Err: refusal}, "2", "1200", ""},
		"refused on a retry": {&layer.Error{Layer: "retry", Kind: layer.ErrRetryRejected, RetryAfter: 1200 * time.Millisecond}, "2", "1200", ""},
		"without a time":     {&layer.Error{Layer: "limit", Kind: layer.ErrNotReady}, "", "", ""},
		"not a refusal":      {&layer.Error{Layer: "retry", RetryAfter: time.Second, Err: errors.New("odd")}, "", "", ""},
		"without a word why": {refusal, "2", "1200", "quiet"},
	} {
		var opts []HandlerOption
		if tt.at == "quiet" {
			opts = append(opts, WithErrorHeaders("", ""))
		}
		proxy := serve(t, failing(tt.err, opts...))
		for _, two := range []bool{false, true} {
			rsp, err := client(t, two).Do(request(t, http.MethodGet, "http://"+proxy+"/", ""))
			require.NoError(t, err)
			read(t, rsp)
			assert.Equal(t, tt.http, rsp.Header.Get("Retry-After"), name)
			assert.NotContains(t, rsp.Header, "Grpc-Retry-Pushback-Ms", name)
			after, said := HTTP{}.RetryAfter(rsp, nil)
			assert.Equal(t, tt.http != "", said, name)
			assert.Equal(t, said, after == 2*time.Second, name)
		}
		req := request(t, http.MethodPost, "http://"+proxy+"/", "")
		req.Header.Set("Content-Type", "application/grpc")
		rsp, err := client(t, true).Do(req)
		require.NoError(t, err)
		read(t, rsp)
		assert.Equal(t, tt.grpc, rsp.Header.Get("Grpc-Retry-Pushback-Ms"), name)
		assert.NotContains(t, rsp.Header, "Retry-After", name)
	}
}

func TestStatusErrorText(t *testing.T) {
	assert.EqualError(t, &StatusError{Code: 503}, "status 503 Service Unavailable")
	assert.EqualError(t, &StatusError{}, "status 500 Internal Server Error")
}

// A client that leaves has the status 499 in the access log and in the Report, whoever serves and
// sends. Nothing is logged as a failure.
func TestClientLeft(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		h2, grpc, upload, std bool
		handler               func(Service, string) http.Handler
	}{
		"HTTP/1":                      {},
		"HTTP/2":                      {h2: true},
		"gRPC":                        {h2: true, grpc: true},
		"upload, HTTP/1":              {upload: true},
		"upload, HTTP/2":              {upload: true, h2: true},
		"net/http, HTTP/1":            {std: true},
		"net/http, upload":            {std: true, upload: true},
		"reverse proxy of net/http":   {handler: reverseProxy},
		"handler without a response":  {handler: awaitsEnd},
		"handler on net/http, silent": {handler: awaitsEnd, std: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := make(chan struct{}, 2)
			up := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				began <- struct{}{}
				_, _ = io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			}))
			var text bytes.Buffer
			log := slog.New(slog.NewTextHandler(&text, nil))
			var classes [5]atomic.Int32
			var opts []EndpointOption
			if tt.grpc {
				opts = append(opts, WithHTTP2())
			}
			svc := layer.Layer[*http.Request, *http.Response](func(next Service) Service {
				return serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
					rsp, err := next.Call(ctx, r)
					if err != nil {
						classes[layer.Classifier[*http.Response](Classify).Classify(ctx, layer.Outcome[*http.Response]{Err: err})].Add(1)
						status, code := StatusFromError(err)
						assert.Equal(t, []int{StatusClientClosedRequest, 1}, []int{status, int(code)}, err)
					}
					return rsp, err
				})
			})(endpoint(t, up, opts...))
			lines, statuses := newPages(), make(chan int, 1)
			observed := []HandlerOption{
				WithLogger(log), WithAccessLog(lines, JSONLog, nil), WithOnResponse(func(x *Report) { statuses <- x.Status }),
			}
			h := Handler(svc, observed...)
			if tt.handler != nil {
				inner := tt.handler(svc, up)
				h = Handler(handledBy(func(w http.ResponseWriter, r *http.Request) {
					began <- struct{}{}
					inner.ServeHTTP(w, r)
				}), observed...)
			}
			var addr string
			if tt.std {
				server := httptest.NewServer(h)
				t.Cleanup(server.Close)
				addr = strings.TrimPrefix(server.URL, "http://")
			} else {
				addr = servingBy(t, h).addr
			}
			ctx, leave := context.WithCancel(t.Context())
			var body io.Reader = http.NoBody
			reader, writer := io.Pipe()
			if tt.upload {
				go func() { _, _ = io.WriteString(writer, "part") }()
				body = reader
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/", body)
			require.NoError(t, err)
			if tt.grpc {
				req.Header.Set("Content-Type", "application/grpc")
			}
			go func() {
				<-began
				time.Sleep(time.Second) // earlier, it would be a half-closed client of HTTP/1
				leave()
				_ = writer.CloseWithError(io.ErrClosedPipe) // net/http's client waits for the body
			}()
			if rsp, err := client(t, tt.h2).Do(req); err == nil {
				_ = rsp.Body.Close()
				require.Fail(t, "a response")
			}
			var got map[string]any
			require.NoError(t, json.Unmarshal([]byte(lines.next(t)), &got))
			assert.EqualValues(t, StatusClientClosedRequest, got["status"])
			assert.Equal(t, true, got["aborted"])
			if tt.grpc {
				assert.Equal(t, "1", got["grpc_status"])
			}
			assert.Equal(t, StatusClientClosedRequest, <-statuses)
			assert.Empty(t, text.String())
			for class := range classes {
				if layer.Class(class) != layer.Ignorable {
					assert.Zero(t, classes[class].Load(), layer.Class(class))
				}
			}
		})
	}
}

func reverseProxy(_ Service, up string) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: up}) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
}

func awaitsEnd(Service, string) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
}

// A client that leaves after the response has begun has the status that was sent.
func TestClientLeftLater(t *testing.T) {
	t.Parallel()
	up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush()
		for r.Context().Err() == nil {
			say(w, strings.Repeat("x", 1<<10))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	}))
	for _, h2 := range []bool{false, true} {
		lines := newPages()
		f := servingBy(t, Handler(endpoint(t, up), WithAccessLog(lines, JSONLog, nil)))
		rsp, err := client(t, h2).Get("http://" + f.addr + "/")
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(lines.next(t)), &got))
		assert.EqualValues(t, http.StatusAccepted, got["status"])
		assert.Equal(t, true, got["aborted"])
	}
}

// A response that ends normally, and one that the service breaks off.
func TestAccessLogAborted(t *testing.T) {
	t.Parallel()
	up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		say(w, "part")
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/broken" {
			panic(http.ErrAbortHandler)
		}
	}))
	lines := newPages()
	f := servingBy(t, Handler(endpoint(t, up), WithAccessLog(lines, JSONLog, nil)))
	for path, aborted := range map[string]any{"/whole": nil, "/broken": true} {
		rsp, err := client(t, false).Get("http://" + f.addr + path)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, rsp.Body)
		require.Equal(t, aborted == nil, err == nil)
		_ = rsp.Body.Close()
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(lines.next(t)), &got))
		assert.EqualValues(t, http.StatusOK, got["status"])
		assert.Equal(t, aborted, got["aborted"])
	}
}

// Refused requests are in the access log, with the reason.
func TestAccessLogRefused(t *testing.T) {
	t.Parallel()
	for _, format := range []AccessLogFormat{JSONLog, ApacheLog} {
		var text strings.Builder
		out := NewLogWriter(&text, nil)
		var ended sync.WaitGroup
		ended.Add(1)
		f := servingBy(t, http.NotFoundHandler(), WithAccessLog(out, format, nil), WithOnResponse(func(x *Report) {
			assert.True(t, x.Refused)
			ended.Done()
		}))
		conn, err := net.Dial("tcp", f.addr)
		require.NoError(t, err)
		_, err = io.WriteString(conn, "GET /a?b HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n")
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		_ = conn.Close()
		assert.Contains(t, string(answer), "400 Bad Request")
		ended.Wait()
		require.NoError(t, out.Flush(t.Context()))
		if format == ApacheLog {
			assert.Regexp(t, `^127.0.0.1:\d+ - - \[.*\] "GET http://h/a\?b HTTP/1.1" 400 58\n$`, text.String())
			continue
		}
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(text.String()), &got))
		assert.EqualValues(t, http.StatusBadRequest, got["status"])
		assert.Contains(t, got["error"], "colon")
		assert.Equal(t, "http://h/a?b", got["uri"])
		assert.NotContains(t, got, "aborted")
	}
}

// The client receives the headers of a response even if the first bytes of its body are malformed.
// A client that receives nothing may repeat the request, because it takes it for unprocessed.
func TestMalformedBodyAfterHeaders(t *testing.T) {
	up := conntest.Serve(t, func(_ int, conn net.Conn) {
		if _, err := readHead(bufio.NewReader(conn)); err == nil {
			say(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n")
		}
	})
	conn, err := net.Dial("tcp", serve(t, Handler(endpoint(t, up))))
	require.NoError(t, err)
	defer conn.Close()
	say(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer rsp.Body.Close()
	assert.Equal(t, http.StatusOK, rsp.StatusCode)
	_, err = io.ReadAll(rsp.Body)
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// A request whose HTTP/2 body is malformed has the status 400 in the access log, as in HTTP/1.1, also
// while it is being sent to the endpoint. It is no failure of the endpoint.
func TestMalformedBodyHTTP2(t *testing.T) {
	kinds := map[string]func(c *framerClient) error{
		"longer than content-length": func(c *framerClient) error {
			c.open(1, false, "content-length", "3")
			return c.WriteData(1, true, []byte("hello"))
		},
		"shorter than content-length": func(c *framerClient) error {
			c.open(1, false, "content-length", "30")
			return c.WriteData(1, true, []byte("hello"))
		},
		"shorter, with trailers": func(c *framerClient) error {
			c.open(1, false, "content-length", "30")
			if err := c.WriteData(1, false, []byte("hello")); err != nil {
				return err
			}
			c.block.Reset()
			if err := c.enc.WriteField(hpackField("x-sum", "1")); err != nil {
				return err
			}
			return c.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block.Bytes(), EndStream: true, EndHeaders: true})
		},
		"trailers with :path": func(c *framerClient) error {
			c.open(1, false)
			c.open(1, true)
			return nil
		},
		"trailers without END_STREAM": func(c *framerClient) error {
			c.open(1, false)
			c.block.Reset()
			if err := c.enc.WriteField(hpackField("x-sum", "1")); err != nil {
				return err
			}
			return c.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block.Bytes(), EndHeaders: true})
		},
	}
	for version, opts := range map[string][]EndpointOption{"HTTP/1.1": nil, "HTTP/2": {WithHTTP2()}} {
		up := endpoint(t, serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })), opts...)
		for name, send := range kinds {
			t.Run(version+"/"+name, func(t *testing.T) {
				log, classes := newPages(), make(chan layer.Class, 1)
				front := servingBy(t, Handler(serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
					rsp, err := up.Call(ctx, r)
					classes <- Classify(layer.Outcome[*http.Response]{Response: rsp, Err: err})
					return rsp, err
				}), WithAccessLog(log, JSONLog, nil)))
				conn, err := net.Dial("tcp", front.addr)
				require.NoError(t, err)
				defer conn.Close()
				c := newFramerClient(t, conn)
				require.NoError(t, send(c))
				seen := c.until(func(e event) bool { return e.kind == "reset 1" })
				assert.Equal(t, xhttp2.ErrCodeProtocol, seen[len(seen)-1].code)
				var line struct {
					Status int
					Error  string
				}
				require.NoError(t, json.Unmarshal([]byte(log.next(t)), &line))
				assert.Equal(t, 400, line.Status)
				assert.Contains(t, line.Error, "malformed request")
				close(classes) // it is empty if the body was malformed before the handler began
				for class := range classes {
					assert.Equal(t, layer.Ignorable, class)
				}
			})
		}
	}
}
