package httplayer

import (
	"context"
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
}
