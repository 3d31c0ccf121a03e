package httplayer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func serviceError(err error) Service {
	return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) { return nil, err })
}

// answerOf returns the response of h to a GET, or to another method, by a real server.
func answerOf(t *testing.T, h http.Handler, method string) (*http.Response, string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL, http.NoBody)
	require.NoError(t, err)
	rsp, err := s.Client().Do(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return rsp, string(body)
}

func TestProblem(t *testing.T) {
	quiet := WithLogger(slog.New(slog.DiscardHandler))
	unauthorized := &StatusError{Code: http.StatusUnauthorized, Header: http.Header{"WWW-Authenticate": {"Bearer"}}, Detail: "a token is required"}
	page := &StatusError{Code: http.StatusNotFound, Header: http.Header{"Content-Type": {"text/html"}}, Body: []byte("<h1>none</h1>")}
	for name, tt := range map[string]struct {
		err               error
		status            int
		contentType, body string
	}{
		"rejection": {
			&layer.Error{Layer: "limit", Endpoint: "10.0.0.1:80", Kind: layer.ErrNotReady}, http.StatusServiceUnavailable,
			"application/problem+json", `{"type":"about:blank","title":"Service Unavailable","status":503}` + "\n",
		},
		"detail": {
			unauthorized, http.StatusUnauthorized,
			"application/problem+json", `{"type":"about:blank","title":"Unauthorized","status":401,"detail":"a token is required"}` + "\n",
		},
		"body": {page, http.StatusNotFound, "text/html", "<h1>none</h1>"},
	} {
		for kind, h := range map[string]http.Handler{
			"Handler":    Handler(serviceError(tt.err), quiet),
			"Middleware": Middleware(func(Service) Service { return serviceError(tt.err) }, quiet)(http.NotFoundHandler()),
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				rsp, body := answerOf(t, h, http.MethodGet)
				assert.Equal(t, tt.status, rsp.StatusCode)
				assert.Equal(t, tt.contentType, rsp.Header.Get("Content-Type"))
				assert.Equal(t, tt.body, body)
				assert.NotContains(t, body, "10.0.0.1")
				head, none := answerOf(t, h, http.MethodHead)
				assert.Empty(t, none)
				assert.EqualValues(t, len(tt.body), head.ContentLength)
			})
		}
	}
	rsp, body := answerOf(t, Handler(serviceError(unauthorized), quiet), http.MethodGet)
	assert.Equal(t, "Bearer", rsp.Header.Get("WWW-Authenticate"))
	assert.True(t, json.Valid([]byte(body)))
	assert.Len(t, unauthorized.Header, 1)
}

// The handler sees every error with its type, and chooses status, headers and body.
func TestErrorHandler(t *testing.T) {
	var seen error
	custom := WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error) {
		seen = err
		http.Error(w, "no "+r.URL.Path, http.StatusTeapot)
	})
	rejection := &layer.Error{Layer: "rate", Kind: layer.ErrNotReady, RetryAfter: 1e9}
	rsp, body := answerOf(t, Handler(serviceError(rejection), custom), http.MethodGet)
	assert.Equal(t, http.StatusTeapot, rsp.StatusCode)
	assert.Equal(t, "no /\n", body)
	assert.Equal(t, "1", rsp.Header.Get("Retry-After"))
	require.ErrorIs(t, seen, layer.ErrNotReady)

	rsp, body = answerOf(t, Handler(serviceError(errors.New("x")), WithErrorHandler(nil), WithLogger(nil)), http.MethodGet)
	assert.Equal(t, http.StatusInternalServerError, rsp.StatusCode)
	assert.Empty(t, body)
	assert.Zero(t, rsp.ContentLength)
}

// A response to an error of CONNECT cannot start a tunnel.
func TestErrorHandlerConnect(t *testing.T) {
	accepts := WithErrorHandler(func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusOK) })
	rsp, _ := answerOf(t, Handler(serviceError(errors.New("x")), accepts, WithConnect(), WithLogger(nil)), http.MethodConnect)
	assert.Equal(t, http.StatusInternalServerError, rsp.StatusCode)
}
