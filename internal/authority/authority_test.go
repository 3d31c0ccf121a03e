package authority_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/authority"
)

func TestValid(t *testing.T) {
	for s, want := range map[string]bool{
		"web": true, "web.default.svc:8080": true, "10.0.0.1:80": true, "10.0.0.1": true, "[::1]": true, "[::1]:80": true,
		"under_score": true, "web:65535": true, "a!$&'*+-._~b": true,
		"": false, "web:": false, "web:0": false, "web:65536": false, "web:http": false, ":80": false, "::1": false,
		"[fe80::1%25eth0]:80": false, "[fe80::1%eth0]": false, "[10.0.0.1]": false, "[::1": false, "[]": false, "[]:80": false,
		"user@web": false, "web/path": false, "web?q": false, "web#f": false, "a b": false, `a"b`: false, "a<b": false,
		"a%20b": false, "a,b": false, "bücher": false, "web\r\nx: y": false, "a\x00b": false,
	} {
		require.Equal(t, want, authority.Valid(s), "%q", s)
	}
}

func TestIsOwn(t *testing.T) {
	for s, want := range map[string]bool{
		"localhost": true, "LOCALHOST.:80": true, "a.localhost": true, "127.0.0.1": true, "10.1.2.3:80": true, "[::1]": true, "[::1]:80": true,
		"Admin.Example:80": true, "admin.example.": true,
		"": false, ":80": false, "notlocalhost": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false, "evil.example:80": false,
	} {
		require.Equal(t, want, authority.IsOwn(s, []string{"admin.example"}), "%q", s)
	}
}

// FuzzValid: a valid authority is one host to package net/url, and net/http sends it
// unchanged.
func FuzzValid(f *testing.F) {
	for _, s := range []string{"web:80", "[::1]:80", `0000"0`, "user@web", "10.0.0.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !authority.Valid(s) {
			return
		}
		u, err := url.Parse("//" + s)
		require.NoError(t, err)
		require.Equal(t, &url.URL{Host: s}, u)
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		req.Host = s
		var sent writer
		require.NoError(t, req.Write(&sent))
		require.Contains(t, string(sent), "\r\nHost: "+s+"\r\n")
	})
}

type writer []byte

func (w *writer) Write(p []byte) (int, error) {
	*w = append(*w, p...)
	return len(p), nil
}
