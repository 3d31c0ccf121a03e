package httplayer_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// A body up to the limit arrives, with and without a length, by both versions. A larger one is 413.
func TestLimitRequestBody(t *testing.T) {
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _ = w.Write(body)
		}
	}))
	backend.Config.Protocols = new(http.Protocols)
	backend.Config.Protocols.SetHTTP1(true)
	backend.Config.Protocols.SetUnencryptedHTTP2(true)
	backend.Start()
	defer backend.Close()
	for name, option := range map[string]httplayer.EndpointOption{"HTTP/1.1": httplayer.WithHTTP1(), "HTTP/2": httplayer.WithHTTP2()} {
		t.Run(name, func(t *testing.T) {
			endpoint := httplayer.NewEndpoint(t.Context(), backend.Listener.Addr().String(), option)
			front := httptest.NewServer(httplayer.Handler(httplayer.NewStack().
				With("limit", httplayer.LimitRequestBody(5)).
				Service(httplayer.SingleEndpoint(endpoint))))
			defer front.Close()
			send := func(body io.Reader) (int, string) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL, body)
				require.NoError(t, err)
				rsp, err := front.Client().Do(req)
				require.NoError(t, err)
				defer rsp.Body.Close()
				text, err := io.ReadAll(rsp.Body)
				require.NoError(t, err)
				return rsp.StatusCode, string(text)
			}
			for text, want := range map[string]int{"": 200, "12345": 200, "123456": 413, strings.Repeat("x", 1<<20): 413} {
				for _, body := range []io.Reader{strings.NewReader(text), struct{ io.Reader }{strings.NewReader(text)}} {
					status, answer := send(body)
					assert.Equal(t, want, status, "%d bytes", len(text))
					if want == http.StatusOK {
						assert.Equal(t, text, answer)
					} else {
						assert.Contains(t, answer, "the request body is above 5 bytes")
					}
				}
			}
		})
	}
}

// After its error a body stays above the limit, so that a second Read does not report a regular end.
func TestLimitRequestBodyStaysAbove(t *testing.T) {
	for name, tt := range map[string]struct {
		limit int64
		want  string
	}{
		"limited": {limit: 5, want: "the request body is above 5 bytes"},
		"largest": {limit: math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			var errs []error
			inner := layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
				for range 2 {
					_, err := io.ReadAll(req.Body)
					errs = append(errs, err)
				}
				return nil, errors.New("unused")
			})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web/", struct{ io.Reader }{strings.NewReader("123456")})
			require.NoError(t, err)
			req.ContentLength = -1
			_, _ = httplayer.LimitRequestBody(tt.limit)(inner).Call(t.Context(), req)
			require.Len(t, errs, 2)
			for _, err := range errs {
				if tt.want == "" {
					assert.NoError(t, err)
				} else {
					assert.ErrorContains(t, err, tt.want)
				}
			}
		})
	}
}
