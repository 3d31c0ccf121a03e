package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

var _ layer.Classifier[*http.Response] = Classify

func TestClassifyStatus(t *testing.T) {
	want := map[int]layer.Class{
		429: layer.Throttled,
		500: layer.Failure, 501: layer.Failure, 505: layer.Failure, 511: layer.Failure, 599: layer.Failure,
		502: layer.Retryable, 503: layer.Retryable, 504: layer.Retryable,
	}
	for _, status := range []int{
		101, 200, 204, 206, 301, 304, 400, 401, 403, 404, 408, 409, 425, 428, 429, 431, 499, 500, 501, 502, 503, 504, 505, 511, 599,
	} {
		for _, ended := range []bool{false, true} {
			class, failure := want[status]
			if !failure {
				class = layer.Success
			}
			rsp := &http.Response{StatusCode: status}
			assert.Equal(t, class, Classify(layer.Outcome[*http.Response]{Response: rsp, Ended: ended}), "%d, ended: %v", status, ended)
		}
	}
	assert.Equal(t, layer.Success, Classify(layer.Outcome[*http.Response]{}))
}

func TestClassifyGRPC(t *testing.T) {
	want := map[string]layer.Class{
		"14": layer.Retryable, "8": layer.Throttled,
		"2": layer.Failure, "4": layer.Failure, "7": layer.Failure, "13": layer.Failure, "15": layer.Failure,
		// A gRPC status that is not a number is UNKNOWN.
		"x": layer.Failure, "-1": layer.Failure, "99999999999999999999": layer.Failure,
	}
	for code := range 20 {
		if s := strconv.Itoa(code); want[s] == 0 {
			want[s] = layer.Success
		}
	}
	for code, class := range want {
		said := http.Header{"Grpc-Status": {code}}
		is := func(rsp *http.Response, ended bool, class layer.Class, when string) {
			t.Helper()
			rsp.StatusCode = 200
			assert.Equal(t, class, Classify(layer.Outcome[*http.Response]{Response: rsp, Ended: ended}), "%s, %s", code, when)
		}
		is(&http.Response{Header: said}, false, class, "nothing but trailers, at the head")
		is(&http.Response{Header: said}, true, class, "nothing but trailers, at the end")
		is(&http.Response{Trailer: said}, true, class, "trailers")
		is(&http.Response{Trailer: said}, false, layer.Success, "trailers that have not arrived")
		is(&http.Response{Trailer: said, Header: http.Header{"Grpc-Status": {"0"}}}, true, class, "trailers have the last word")
	}
}

func TestClassifyGRPCAndStatus(t *testing.T) {
	for name, tt := range map[string]struct {
		status        int
		head, trailer http.Header
		want          layer.Class
	}{
		"OK":                         {200, nil, http.Header{"Grpc-Status": {"0"}}, layer.Success},
		"no status at all":           {200, http.Header{"Content-Type": {"application/grpc"}}, nil, layer.Success},
		"no status, announced":       {200, nil, http.Header{"Grpc-Status": nil}, layer.Success},
		"no status, and not a 200":   {503, http.Header{"Content-Type": {"application/grpc"}}, nil, layer.Retryable},
		"the code counts for more":   {503, http.Header{"Grpc-Status": {"0"}}, nil, layer.Success},
		"and when it is the failure": {200, http.Header{"Grpc-Status": {"14"}}, nil, layer.Retryable},
	} {
		rsp := &http.Response{StatusCode: tt.status, Header: tt.head, Trailer: tt.trailer}
		assert.Equal(t, tt.want, Classify(layer.Outcome[*http.Response]{Response: rsp, Ended: true}), name)
	}
}

func TestClassifyErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want layer.Class
	}{
		"of the endpoint": {&layer.Error{Layer: "endpoint", Err: &peerError{errors.New("odd")}}, layer.Retryable},
		"of the network":  {fmt.Errorf("x: %w", syscall.ECONNRESET), layer.Retryable},
		"broken off":      {io.ErrUnexpectedEOF, layer.Retryable},
		"a try too long":  {&layer.Error{Layer: "retry", Kind: layer.ErrAttemptTimeout}, layer.Retryable},
		"all too long":    {&layer.Error{Layer: "timeout", Kind: layer.ErrTimeout}, layer.Failure},
		"head too late":   {&layer.Error{Layer: "timeout", Kind: layer.ErrResponseHeaderTimeout}, layer.Failure},
		"chosen, 503":     {fmt.Errorf("x: %w", &StatusError{Code: 503}), layer.Retryable},
		"chosen, 429":     {&StatusError{Code: 429}, layer.Throttled},
		"chosen, 400":     {&StatusError{Code: 400}, layer.Success},
		"chosen badly":    {&StatusError{}, layer.Failure},
		"anything else":   {errors.New("odd"), layer.Failure},
	} {
		assert.Equal(t, tt.want, Classify(layer.Outcome[*http.Response]{Err: tt.err}), name)
	}
}

// Trailers-only responses and trailers are classified when they arrive over a connection.
func TestClassifyReceivedResponses(t *testing.T) {
	e := endpoint(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		switch r.URL.Path {
		case "/only":
			w.Header().Set("Grpc-Status", "14")
		case "/after":
			w.Header().Set("Trailer", "Grpc-Status")
			say(w, "message")
			w.Header().Set("Grpc-Status", "14")
		case "/unannounced":
			say(w, "message")
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "14")
		case "/none":
			say(w, "message")
		}
	})), WithHTTP2())
	for path, want := range map[string][2]layer.Class{
		"/only":        {layer.Retryable, layer.Retryable},
		"/after":       {layer.Success, layer.Retryable},
		"/unannounced": {layer.Success, layer.Retryable},
		"/none":        {layer.Success, layer.Success},
	} {
		rsp, err := e.Call(t.Context(), request(t, http.MethodPost, "http://web"+path, "x"))
		require.NoError(t, err)
		head := Classify(layer.Outcome[*http.Response]{Response: rsp})
		read(t, rsp)
		end := Classify(layer.Outcome[*http.Response]{Response: rsp, Ended: true})
		assert.Equal(t, want, [2]layer.Class{head, end}, path)
	}
}

func TestGRPCTimeout(t *testing.T) {
	for _, tt := range []struct {
		value string
		want  time.Duration
		ok    bool
	}{
		{"1S", time.Second, true},
		{"99999999n", 99999999, true},
		{"5u", 5 * time.Microsecond, true},
		{"300m", 300 * time.Millisecond, true},
		{"2M", 2 * time.Minute, true},
		{"1H", time.Hour, true},
		{"0S", 0, true},
		{"99999999H", math.MaxInt64, true},
		{"100000000n", 0, false}, // nine digits
		{"1s", 0, false},
		{"S", 0, false},
		{"", 0, false},
		{"-1S", 0, false},
		{"+1S", 0, false},
		{"1.5S", 0, false},
		{" 1S", 0, false},
	} {
		req := &http.Request{Header: http.Header{"Grpc-Timeout": {tt.value, "7"}}}
		got, ok := GRPCTimeout(req)
		assert.Equal(t, tt.ok, ok, tt.value)
		assert.Equal(t, tt.want, got, tt.value)
	}
	_, ok := GRPCTimeout(&http.Request{})
	assert.False(t, ok)
}

func TestDeadlineFromHeader(t *testing.T) {
	read := DeadlineFromHeader("x-time-left")
	for _, tt := range []struct {
		value string
		want  time.Duration
		ok    bool
	}{
		{"1.5s", 1500 * time.Millisecond, true},
		{"300ms", 300 * time.Millisecond, true},
		{"0", 0, true},
		{"-1s", -time.Second, true},
		{"2562047h", 2562047 * time.Hour, true},
		{"2562048h", 0, false}, // more than the largest Duration
		{"1", 0, false},
		{"1S", 0, false},
		{"", 0, false},
		{" 1s", 0, false},
	} {
		got, ok := read(&http.Request{Header: http.Header{"X-Time-Left": {tt.value, "7s"}}})
		assert.Equal(t, tt.ok, ok, tt.value)
		assert.Equal(t, tt.want, got, tt.value)
	}
	_, ok := read(&http.Request{Header: http.Header{"Grpc-Timeout": {"1S"}}})
	assert.False(t, ok)
}

func TestDeadlineToHeader(t *testing.T) {
	write := DeadlineToHeader("x-time-left")
	for left, want := range map[time.Duration]string{
		1500 * time.Millisecond: "1.5s", 999: "999ns", 0: "0s", -1: "0s", math.MaxInt64: "2562047h47m16.854775807s",
	} {
		old := http.Header{"X-Time-Left": {"old"}, "Other": {"kept"}}
		got := write(&http.Request{Header: old, Host: "web:80"}, left)
		assert.Equal(t, http.Header{"X-Time-Left": {want}, "Other": {"kept"}}, got.Header)
		assert.Equal(t, http.Header{"X-Time-Left": {"old"}, "Other": {"kept"}}, old, "the request is unchanged")
		assert.Equal(t, "web:80", got.Host)
		again, ok := DeadlineFromHeader("X-Time-Left")(got)
		assert.True(t, ok)
		assert.Equal(t, max(left, 0), again)
	}
	assert.Equal(t, http.Header{"X-Time-Left": {"1s"}}, write(&http.Request{}, time.Second).Header)
}

func TestSetGRPCTimeoutCopies(t *testing.T) {
	for _, tt := range []struct {
		left time.Duration
		want string
	}{
		{1, "1n"},
		{0, "0n"},
		{-time.Second, "0n"},
		{99_999_999, "99999999n"},
		{100 * time.Millisecond, "100000u"},
		{99_999_999*time.Microsecond + 999, "99999999u"},
		{100 * time.Second, "100000m"},
		{100_000 * time.Second, "100000S"},
		{100_000_000 * time.Second, "1666666M"},
		{math.MaxInt64, "2562047H"},
	} {
		old := http.Header{"Grpc-Timeout": {"old"}, "Other": {"kept"}}
		req := &http.Request{Header: old, Host: "web:80"}
		got := SetGRPCTimeout(req, tt.left)
		assert.Equal(t, http.Header{"Grpc-Timeout": {tt.want}, "Other": {"kept"}}, got.Header)
		assert.Equal(t, http.Header{"Grpc-Timeout": {"old"}, "Other": {"kept"}}, old, "the request is as it was")
		assert.NotSame(t, req, got)
		assert.Equal(t, "web:80", got.Host)
		got.Header.Add("Other", "more")
		assert.Equal(t, []string{"kept"}, old["Other"])
	}
	got := SetGRPCTimeout(&http.Request{}, time.Second)
	assert.Equal(t, http.Header{"Grpc-Timeout": {"1000000u"}}, got.Header)
}

// A client, a proxy and a server: each has at most as much time as the one
// before it.
func TestDeadlineOverHTTP(t *testing.T) {
	type service = layer.Service[*http.Request, *http.Response]
	left := func(ctx context.Context) time.Duration {
		at, ok := ctx.Deadline()
		require.True(t, ok)
		return time.Until(at)
	}
	for _, f := range []struct {
		read  func(*http.Request) (time.Duration, bool)
		write func(*http.Request, time.Duration) *http.Request
	}{
		{GRPCTimeout, SetGRPCTimeout},
		{DeadlineFromHeader("X-Time-Left"), DeadlineToHeader("X-Time-Left")},
	} {
		in := layer.DeadlineFromRequest[*http.Request, *http.Response](f.read)
		out := layer.DeadlineToRequest[*http.Request, *http.Response](f.write, time.Second)
		var atProxy, atServer time.Duration
		var server service = layer.Func[*http.Request, *http.Response](
			func(ctx context.Context, _ *http.Request) (*http.Response, error) {
				atServer = left(ctx)
				return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("x"))}, nil
			})
		proxy := in(layer.Func[*http.Request, *http.Response](
			func(ctx context.Context, r *http.Request) (*http.Response, error) {
				atProxy = left(ctx)
				return out(in(server)).Call(ctx, r)
			}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req := httptest.NewRequest(http.MethodGet, "http://web:80/", http.NoBody)
		rsp, err := out(proxy).Call(ctx, req)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		assert.Empty(t, req.Header)
		assert.LessOrEqual(t, atProxy, 59*time.Second)
		assert.LessOrEqual(t, atServer, atProxy-time.Second)
		assert.Greater(t, atServer, 30*time.Second)
	}
}

// An expired request is rejected, with the status of gRPC's servers.
func TestDeadlineStatus(t *testing.T) {
	type read = func(*http.Request) (time.Duration, bool)
	for value, f := range map[string]read{"0m": GRPCTimeout, "0s": DeadlineFromHeader("Grpc-Timeout"), "-1s": DeadlineFromHeader("grpc-timeout")} {
		late := layer.DeadlineFromRequest[*http.Request, *http.Response](f)(nil)
		_, err := late.Call(t.Context(), &http.Request{Header: http.Header{"Grpc-Timeout": {value}}})
		status, code := StatusFromError(err)
		assert.Equal(t, http.StatusGatewayTimeout, status)
		assert.EqualValues(t, grpcDeadlineExceeded, code)
	}
}

// A plain header neither extends an earlier deadline of the context nor the deadline of the
// request.
func TestDeadlineFromHeaderExtendsNothing(t *testing.T) {
	for value, want := range map[string]time.Duration{"1h": time.Minute, "10s": 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			svc := layer.DeadlineFromRequest[*http.Request, *http.Response](DeadlineFromHeader("X-Time-Left"))(
				serviceFunc(func(ctx context.Context, _ *http.Request) (*http.Response, error) {
					at, ok := ctx.Deadline()
					assert.True(t, ok)
					assert.Equal(t, want, at.Sub(began), value)
					return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
				}))
			rsp, err := svc.Call(ctx, &http.Request{Header: http.Header{"X-Time-Left": {value}}})
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		})
	}
}

// A received timeout in gRPC's format is never negative. A timeout that is written and read again is
// shorter by less than one unit.
func FuzzDeadlineGRPC(f *testing.F) {
	for _, s := range []string{"1S", "99999999H", "0n", "-1S", "100000000n", "1", "", "1\u0660S"} {
		f.Add(s, int64(time.Second))
	}
	f.Add("1m", int64(math.MaxInt64))
	f.Add("0", int64(999_999_967))
	f.Fuzz(func(t *testing.T, s string, n int64) {
		if d, ok := parseGRPCTimeout(s); ok {
			require.LessOrEqual(t, len(s), 9)
			require.Empty(t, strings.Trim(s[:len(s)-1], "0123456789"))
			require.GreaterOrEqual(t, d, time.Duration(0))
			if again, ok := parseGRPCTimeout(formatGRPCTimeout(d)); !ok || again > d {
				t.Fatalf("%q is %v, and %v when it was passed on", s, d, again)
			}
		}
		d := time.Duration(max(n, 0))
		text := formatGRPCTimeout(d)
		got, ok := parseGRPCTimeout(text)
		require.True(t, ok, text)
		require.LessOrEqual(t, got, d, text)
		// A unit is left for one 1000 times as large when 8 digits no longer do:
		// at least 100 000 of that one remain, and less than one is lost.
		require.LessOrEqual(t, float64(d-got), float64(d)/100_000, text)
	})
}
