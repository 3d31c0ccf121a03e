package httplayer

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A nil option has no effect in any constructor.
func TestNilOptions(t *testing.T) {
	e := NewEndpoint(t.Context(), "127.0.0.1:1", nil, WithConnectTimeout(1))
	require.NotNil(t, e)
	ok := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody}, nil
	})
	rec := httptest.NewRecorder()
	Handler(ok, nil).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	require.Equal(t, http.StatusNoContent, rec.Code)
}

// A nil argument without a meaning panics in the constructor, with one sentence.
func TestNilArguments(t *testing.T) {
	for want, call := range map[string]func(){
		"httplayer: nil service":       func() { Handler(nil) },
		"httplayer: nil handler":       func() { FromHandler(nil) },
		"httplayer: nil dial function": func() { WithDialContext(nil) },
	} {
		require.PanicsWithValue(t, want, call)
	}
	require.PanicsWithValue(t, "httplayer: nil service", func() { RoundTripper(nil) })
	require.PanicsWithValue(t, "httplayer: nil handler", func() { Middleware(nil)(nil) })
	require.PanicsWithValue(t, "httplayer: nil service", func() { NewServer(nil) })
	require.PanicsWithValue(t, "httplayer: nil endpoint", func() { SingleEndpoint(nil) })
	require.PanicsWithValue(t, "httplayer: empty address", func() { NewEndpoint(t.Context(), "") })
}

// A malformed address, and a dial function that returns nothing, are errors of Call.
func TestEndpointWithoutConnection(t *testing.T) {
	nothing := func(context.Context, string, string) (net.Conn, error) { return nil, nil }
	for name, tt := range map[string]struct {
		e    *Endpoint
		want string
	}{
		"no port":        {NewEndpoint(t.Context(), "web"), "missing port in address"},
		"no conn":        {NewEndpoint(t.Context(), "web:80", WithDialContext(nothing)), errNoConn.Error()},
		"no conn for h2": {NewEndpoint(t.Context(), "web:80", WithDialContext(nothing), WithHTTP2()), errNoConn.Error()},
	} {
		_, err := tt.e.Call(t.Context(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		require.ErrorContains(t, err, tt.want, name)
	}
}

// Without a client certificate, the log has "-". Without a writer there is no log.
func TestAccessLogNilArguments(t *testing.T) {
	mux := http.NewServeMux()
	require.Empty(t, newServerOptions(FromHandler(mux), []ServerOption{WithAccessLog(nil, JSONLog, nil), nil, HandlerOption(nil)}).handler.onEnd)
	var line strings.Builder
	lines := NewLogWriter(&line, nil)
	logged(mux, lines, JSONLog).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	require.NoError(t, lines.Flush(t.Context()))
	require.PanicsWithValue(t, "httplayer: nil writer", func() { NewLogWriter(nil, nil) })
	require.Contains(t, line.String(), `"client.id":"-"`)
}

// A nil logger disables logging.
func TestNilLoggers(t *testing.T) {
	refused := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) { return nil, layer.ErrNoRoute })
	rec := httptest.NewRecorder()
	Handler(refused, WithLogger(nil)).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	require.Equal(t, http.StatusNotFound, rec.Code)

	peer := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		return &http.Response{Header: http.Header{proxyErrorField: {"odd"}}, Body: http.NoBody}, nil
	})
	rsp, err := ProxyErrors(nil, false)(peer).Call(t.Context(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	require.NoError(t, err)
	require.Empty(t, rsp.Header)
}

// Without a function for the identity, identity headers of the client are dropped.
func TestClientIDWithoutIdentity(t *testing.T) {
	req := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	req.Header.Set(clientIDField, "forged.id")
	got, _, err := passed(t, ClientID(nil), req)
	require.NoError(t, err)
	require.NotContains(t, got.Header, clientIDField)
}

// All spellings by which an application may read an identity are dropped from headers and trailers.
func TestClientIDDropsForgedFields(t *testing.T) {
	for _, name := range []string{
		"l5d-client-id", "L5D-CLIENT-ID", "l5d_client_id", "l5d-client_id", "L5d_Client-Id", "l5d-remote-ip", "l5d_remote_ip", "l5d-server-id", "l5d_server_id",
	} {
		for _, id := range []string{"", "web.id"} {
			req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
			req.Header[name] = []string{"forged"}
			req.Header.Add(name, "forged")
			req.Header.Set("L5d-Dst-Canonical", "web:80")
			req.Trailer = http.Header{name: {"forged"}, "Other": nil}
			got, _, err := passed(t, ClientID(func(*http.Request) string { return id }), req)
			require.NoError(t, err)
			_, err = io.ReadAll(got.Body)
			require.NoError(t, err)
			require.NotContains(t, fmt.Sprint(got.Header, got.Trailer), "forged", name)
			require.Equal(t, id, got.Header.Get("L5d-Client-Id"))
			require.Equal(t, "web:80", got.Header.Get("L5d-Dst-Canonical"))
			require.Contains(t, got.Trailer, "Other")
		}
	}
}
