package httplayer

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A nil option is none, wherever there are options.
func TestNilOptions(t *testing.T) {
	e := NewEndpoint(t.Context(), "127.0.0.1:1", nil, ConnectTimeout(1))
	require.NotNil(t, e)
	ok := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody}, nil
	})
	rec := httptest.NewRecorder()
	Handler(ok, nil).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	require.Equal(t, http.StatusNoContent, rec.Code)
}

// A nil logger is silence.
func TestNilLoggers(t *testing.T) {
	refused := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) { return nil, layer.ErrNoRoute })
	rec := httptest.NewRecorder()
	Handler(refused, Logger(nil)).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	require.Equal(t, http.StatusNotFound, rec.Code)

	g := NewGuard(GuardLogger(nil))
	g.cut(&GuardError{Reason: BadHost})
	require.EqualValues(t, 1, g.Cuts(BadHost))

	told := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		return &http.Response{Header: http.Header{proxyErrorField: {"odd"}}, Body: http.NoBody}, nil
	})
	rsp, err := ProxyErrors(LogProxyErrors(nil))(told).Call(t.Context(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	require.NoError(t, err)
	require.Empty(t, rsp.Header)
}

// Who does not say who the client is, must not let the client say it.
func TestClientIDOfNobody(t *testing.T) {
	req := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	req.Header.Set(clientIDField, "forged.id")
	got, _, err := passed(t, ClientID(nil), req)
	require.NoError(t, err)
	require.NotContains(t, got.Header, clientIDField)
}
