package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A page of another site cannot read the metrics by a name that resolves to a loopback address.
// Monitoring may use any name at other addresses.
func TestAdminMetricsHost(t *testing.T) {
	p := start(t, strings.Replace(head, `tap: "off"`, `tap: "off", hosts: [gateway.example]`, 1)+"routes: []\n")
	for host, status := range map[string]int{
		"": 200, "localhost:1": 200, "127.0.0.1": 200, "[::1]:80": 200, "gateway.example": 200, "GATEWAY.example:80": 200,
		"evil.example": 403, "evil.example:9901": 403, "localhost.evil.example": 403,
	} {
		fields := []string{}
		if host != "" {
			fields = append(fields, "Host: "+host)
		}
		a, err := p.send(t.Context(), http.MethodGet, "http://"+p.addresses["admin"]+"/metrics", "", fields...)
		require.NoError(t, err)
		assert.Equal(t, status, a.StatusCode, host)
	}
	h := ownHost(nil, http.NotFoundHandler())
	for addr, status := range map[string]int{"10.0.0.1:9901": 404, "127.0.0.1:9901": 403, "[::ffff:127.0.0.1]:9901": 403} {
		local, err := net.ResolveTCPAddr("tcp", addr)
		require.NoError(t, err)
		w := httptest.NewRecorder()
		ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, local)
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://gateway.shop.svc:9901/metrics", http.NoBody))
		assert.Equal(t, status, w.Code, addr)
	}
}
