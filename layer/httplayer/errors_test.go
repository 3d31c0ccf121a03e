package httplayer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
		"downgraded reset":         {downgradedReset(&message.ResetError{Code: message.CodeEnhanceYourCalm, Remote: true}), 502, 14, true},
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
}

func failing(err error, opts ...HandlerOption) http.Handler {
	svc := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) { return nil, err })
	return Handler(svc, append([]HandlerOption{WithErrorHeaders(true)}, opts...)...)
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
				assert.Contains(t, read(t, rsp), fmt.Sprintf(`"status":%d}`, tt.status))
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
		"default": nil, "off": {WithErrorHeaders(false)}, "on": {WithErrorHeaders(true)},
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
			assert.Equal(t, on && grpc, rsp.Header.Get("Grpc-Message") != "", name)
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
			proxy := serve(t, Handler(svc, WithErrorHeaders(true)))
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
