package httplayer

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

func TestTargetForm(t *testing.T) {
	for name, tt := range map[string]struct {
		method, target, proto, host string
		orig                        string
	}{
		"origin":                {"GET", "/a", "HTTP/1.1", "web", "HTTP/1.1"},
		"asterisk":              {"OPTIONS", "*", "HTTP/1.1", "web", "HTTP/1.1"},
		"absolute":              {"GET", "http://web/a", "HTTP/1.1", "web", "HTTP/1.1; absolute-form"},
		"HTTP/1.0":              {"GET", "/a", "HTTP/1.0", "web", "HTTP/1.0"},
		"HTTP/1.0 absolute":     {"GET", "http://web/a", "HTTP/1.0", "web", "HTTP/1.0; absolute-form"},
		"no host":               {"GET", "/a", "HTTP/1.1", "", "HTTP/1.1"},
		"HTTP/2":                {"GET", "/a", "HTTP/2.0", "web", ""},
		"HTTP/2 without a host": {"GET", "/a", "HTTP/2.0", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(tt.method, tt.target, nil)
			req.Proto, req.Host = tt.proto, tt.host
			req.ProtoMajor, req.ProtoMinor = int(tt.proto[5]-'0'), int(tt.proto[7]-'0')
			if tt.orig != "" {
				assert.Equal(t, tt.orig, origProto(req))
			}
		})
	}
}

// A valid authority has only a host and a port.
func FuzzAuthorityForm(f *testing.F) {
	for _, s := range []string{"web:443", "[::1]:80", "web", "/", "http://web/", "a:b:1", "web:0", "web:+1", "me@web:80", ":80", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !message.ValidAuthority(s) {
			return
		}
		host, port, err := net.SplitHostPort(s)
		require.NoError(t, err)
		require.NotEmpty(t, host)
		n, err := strconv.Atoi(port)
		require.NoError(t, err)
		require.True(t, n > 0 && n < 1<<16)
		require.NotContains(t, s, "/")
		require.NotContains(t, s, "@")
	})
}

// FuzzDowngradeOrigProto checks that the application never receives l5d-orig-proto and
// always receives a valid version.
func FuzzDowngradeOrigProto(f *testing.F) {
	for _, s := range []string{"HTTP/1.1", "HTTP/1.0; absolute-form", "HTTP/1.1;absolute-form", "HTTP/2", "", "; ", "HTTP/1.1; x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, said string) {
		svc := DowngradeOrigProto()(serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
			require.NotContains(t, r.Header, "L5d-Orig-Proto")
			require.Contains(t, []string{"HTTP/1.0", "HTTP/1.1", "HTTP/2.0"}, r.Proto)
			return &http.Response{StatusCode: http.StatusOK}, nil
		}))
		req := httptest.NewRequest("GET", "/", nil)
		req.Proto, req.ProtoMajor, req.ProtoMinor = "HTTP/2.0", 2, 0
		req.Header["L5d-Orig-Proto"] = []string{said}
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		require.NotContains(t, rsp.Header.Get("L5d-Orig-Proto"), "absolute")
	})
}
