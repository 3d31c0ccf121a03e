package httplayer

import (
	"context"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestDeadlineIsReadFromAHeader(t *testing.T) {
	for _, tt := range []struct {
		format DeadlineFormat
		value  string
		want   time.Duration
		ok     bool
	}{
		{DeadlineGRPC, "1S", time.Second, true},
		{DeadlineGRPC, "99999999n", 99999999, true},
		{DeadlineGRPC, "5u", 5 * time.Microsecond, true},
		{DeadlineGRPC, "300m", 300 * time.Millisecond, true},
		{DeadlineGRPC, "2M", 2 * time.Minute, true},
		{DeadlineGRPC, "1H", time.Hour, true},
		{DeadlineGRPC, "0S", 0, true},
		{DeadlineGRPC, "99999999H", math.MaxInt64, true},
		{DeadlineGRPC, "100000000n", 0, false}, // nine digits
		{DeadlineGRPC, "1s", 0, false},
		{DeadlineGRPC, "S", 0, false},
		{DeadlineGRPC, "", 0, false},
		{DeadlineGRPC, "-1S", 0, false},
		{DeadlineGRPC, "+1S", 0, false},
		{DeadlineGRPC, "1.5S", 0, false},
		{DeadlineGRPC, " 1S", 0, false},
		{DeadlineDuration, "1.5s", 1500 * time.Millisecond, true},
		{DeadlineDuration, "0", 0, true},
		{DeadlineDuration, "-1s", -time.Second, true},
		{DeadlineDuration, "1", 0, false},
		{DeadlineDuration, "1S", 0, false},
		{DeadlineMillis, "1500", 1500 * time.Millisecond, true},
		{DeadlineMillis, "0", 0, true},
		{DeadlineMillis, "-5", 0, true},
		{DeadlineMillis, "9223372036854775807", math.MaxInt64, true},
		{DeadlineMillis, "9223372036854775808", 0, false},
		{DeadlineMillis, "1.5", 0, false},
		{DeadlineMillis, "1s", 0, false},
	} {
		req := &http.Request{Header: http.Header{"X-Time-Left": {tt.value, "7"}}}
		got, ok := DeadlineFromHeader("x-time-left", tt.format)(req)
		assert.Equal(t, tt.ok, ok, tt.value)
		assert.Equal(t, tt.want, got, tt.value)
	}
	_, ok := DeadlineFromHeader(GRPCTimeout, DeadlineGRPC)(&http.Request{})
	assert.False(t, ok)
}

func TestDeadlineIsWrittenToACopy(t *testing.T) {
	for _, tt := range []struct {
		format DeadlineFormat
		left   time.Duration
		want   string
	}{
		{DeadlineGRPC, 1, "1n"},
		{DeadlineGRPC, 0, "0n"},
		{DeadlineGRPC, -time.Second, "0n"},
		{DeadlineGRPC, 99_999_999, "99999999n"},
		{DeadlineGRPC, 100 * time.Millisecond, "100000u"},
		{DeadlineGRPC, 99_999_999*time.Microsecond + 999, "99999999u"},
		{DeadlineGRPC, 100 * time.Second, "100000m"},
		{DeadlineGRPC, 100_000 * time.Second, "100000S"},
		{DeadlineGRPC, 100_000_000 * time.Second, "1666666M"},
		{DeadlineGRPC, math.MaxInt64, "2562047H"},
		{DeadlineDuration, 1500 * time.Millisecond, "1.5s"},
		{DeadlineDuration, -1, "0s"},
		{DeadlineMillis, 1500*time.Millisecond + 999_999, "1500"},
		{DeadlineMillis, 999_999, "0"},
	} {
		old := http.Header{"X-Time-Left": {"old"}, "Other": {"kept"}}
		req := &http.Request{Header: old, Host: "web:80"}
		got := DeadlineToHeader("x-time-left", tt.format)(req, tt.left)
		assert.Equal(t, http.Header{"X-Time-Left": {tt.want}, "Other": {"kept"}}, got.Header)
		assert.Equal(t, http.Header{"X-Time-Left": {"old"}, "Other": {"kept"}}, old, "the request is as it was")
		assert.NotSame(t, req, got)
		assert.Equal(t, "web:80", got.Host)
		got.Header.Add("Other", "more")
		assert.Equal(t, []string{"kept"}, old["Other"])
	}
	got := DeadlineToHeader(GRPCTimeout, DeadlineGRPC)(&http.Request{}, time.Second)
	assert.Equal(t, http.Header{"Grpc-Timeout": {"1000000u"}}, got.Header)
}

// A client, a proxy and a server: each knows of no more time than the one
// before it.
func TestDeadlineTravelsByHTTP(t *testing.T) {
	type service = layer.Service[*http.Request, *http.Response]
	left := func(ctx context.Context) time.Duration {
		at, ok := ctx.Deadline()
		require.True(t, ok)
		return time.Until(at)
	}
	for _, f := range []DeadlineFormat{DeadlineGRPC, DeadlineDuration, DeadlineMillis} {
		in := layer.DeadlineFromRequest[*http.Request, *http.Response](DeadlineFromHeader("X-Left", f))
		out := layer.DeadlineToRequest[*http.Request, *http.Response](DeadlineToHeader("X-Left", f), time.Second)
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

// StatusFromError tells a client of a deadline what gRPC's servers do.
func TestDeadlineHasTheStatusOfATimeout(t *testing.T) {
	late := layer.DeadlineFromRequest[*http.Request, *http.Response](DeadlineFromHeader(GRPCTimeout, DeadlineGRPC))(nil)
	_, err := late.Call(t.Context(), &http.Request{Header: http.Header{GRPCTimeout: {"0m"}}})
	status, code := StatusFromError(err)
	assert.Equal(t, http.StatusGatewayTimeout, status)
	assert.EqualValues(t, grpcDeadlineExceeded, code)
}

// What is read is never negative in gRPC's format, and what was written is
// read as no more than it was, to within the unit.
func FuzzDeadlineGRPC(f *testing.F) {
	for _, s := range []string{"1S", "99999999H", "0n", "-1S", "100000000n", "1", "", "1\u0660S"} {
		f.Add(s, int64(time.Second))
	}
	f.Add("1m", int64(math.MaxInt64))
	f.Add("0", int64(999_999_967))
	f.Fuzz(func(t *testing.T, s string, n int64) {
		if d, ok := grpcTimeout(s); ok {
			require.LessOrEqual(t, len(s), 9)
			require.Empty(t, strings.Trim(s[:len(s)-1], "0123456789"))
			require.GreaterOrEqual(t, d, time.Duration(0))
			if again, ok := grpcTimeout(formatGRPCTimeout(d)); !ok || again > d {
				t.Fatalf("%q is %v, and %v when it was passed on", s, d, again)
			}
		}
		d := time.Duration(max(n, 0))
		text := formatGRPCTimeout(d)
		got, ok := grpcTimeout(text)
		require.True(t, ok, text)
		require.LessOrEqual(t, got, d, text)
		// A unit is left for one 1000 times as large when 8 digits no longer do:
		// at least 100 000 of that one remain, and less than one is lost.
		require.LessOrEqual(t, float64(d-got), float64(d)/100_000, text)
	})
}

func FuzzDeadlineMillis(f *testing.F) {
	f.Add("1500")
	f.Add("-1")
	f.Add("9223372036854775807")
	f.Fuzz(func(t *testing.T, s string) {
		d, ok := parseMillis(s)
		require.GreaterOrEqual(t, d, time.Duration(0))
		if !ok {
			require.Zero(t, d)
			return
		}
		again, ok := parseMillis(DeadlineMillis.format()(d))
		require.True(t, ok)
		require.LessOrEqual(t, again, d)
		require.Less(t, d-again, time.Millisecond)
	})
}
