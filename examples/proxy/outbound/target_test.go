package outbound_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/outbound"
)

func TestTarget(t *testing.T) {
	tests := []struct{ host, override, want, err string }{
		{host: "web.default", want: "web.default:80"},
		{host: "Web.Default.:8080", want: "web.default:8080"},
		{host: "proxy", override: "web.default:81", want: "web.default:81"},
		{host: "127.0.0.1:4140", want: "127.0.0.1:4140"},
		{host: "[2001:DB8::1]:8080", want: "[2001:db8::1]:8080"},
		{host: "[::1]", want: "[::1]:80"},
		{host: ".", err: "must be name or name:port"},
		{host: "::1", err: "with brackets around an IPv6 address"},
		{host: "[fe80::1%eth0]:80", err: "must be name or name:port"},
		{host: "", err: "the request has no host"},
		{host: "web:http", err: `host "web:http": the port must be from 1 to 65535`},
		{host: "web:0", err: `host "web:0": the port must be`},
		{host: "a", override: "web:70000", err: `l5d-dst-override "web:70000": the port must be`},
		{host: ":80", err: `host ":80": must be name or name:port, with brackets around an IPv6 address`},
	}
	for _, tt := range tests {
		t.Run(tt.host+tt.override, func(t *testing.T) {
			req := &http.Request{Host: tt.host, URL: &url.URL{Path: "/"}, Header: http.Header{}}
			if tt.override != "" {
				req.Header.Set("L5d-Dst-Override", tt.override)
			}
			got, err := outbound.Target(req)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got.String())
		})
	}
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"web:80", "[::1]:80", "::1", "a b", "web:99999", "web:", "w/x"} {
		f.Add(s, "")
		f.Add("web", s)
	}
	f.Fuzz(func(t *testing.T, host, override string) {
		req := &http.Request{Host: host, URL: &url.URL{}, Header: http.Header{"L5d-Dst-Override": {override}}}
		got, err := outbound.Target(req)
		if (err == nil) == (got == outbound.Authority{}) {
			t.Fatalf("%q %q: %q, %v", host, override, got, err)
		}
		if err != nil {
			return
		}
		if again, err := outbound.Target(&http.Request{Host: got.String(), URL: &url.URL{}}); again != got {
			t.Fatalf("%q becomes %q: %v", got, again, err)
		}
	})
}
