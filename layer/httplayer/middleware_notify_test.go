package httplayer

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wrappers are what gives a handler a writer of its own.
func wrappers() map[string]func(http.Handler) http.Handler {
	return map[string]func(http.Handler) http.Handler{
		"Middleware": Middleware(nil),
		"AccessLog":  AccessLog(io.Discard, JSONLog),
		"both":       func(h http.Handler) http.Handler { return AccessLog(io.Discard, JSONLog)(Middleware(nil)(h)) },
	}
}

// Handlers hear of a client that has gone as they do without layers.
func TestWritersTellThatTheClientHasGone(t *testing.T) {
	for name, wrap := range wrappers() {
		t.Run(name, func(t *testing.T) {
			heard := make(chan bool, 1)
			h := wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				notifier, ok := w.(closeNotifier)
				if !assert.True(t, ok) {
					heard <- false
					return
				}
				gone := notifier.CloseNotify()
				flush(w)
				select {
				case said := <-gone:
					heard <- said
				case <-time.After(patience):
					heard <- false
				}
			}))
			bothWays(t, h, func(t *testing.T, c *http.Client, base string) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				rsp, err := c.Do(request(t, http.MethodGet, base, "").WithContext(ctx))
				require.NoError(t, err)
				cancel()
				_ = rsp.Body.Close()
				assert.True(t, <-heard)
			})
		})
	}
}

// notifying is a writer of somebody else's that tells it, and does not hijack.
type notifying struct{ *httptest.ResponseRecorder }

func (notifying) CloseNotify() <-chan bool { return nil }

// A writer can no more and no less than the one below it.
func TestWritersTellNothingThatTheyDoNotKnow(t *testing.T) {
	for name, wrap := range wrappers() {
		for _, tt := range []struct {
			writer            http.ResponseWriter
			hijacks, notifies bool
		}{
			{struct{ http.ResponseWriter }{httptest.NewRecorder()}, false, false},
			{httptest.NewRecorder(), false, false},
			{full{hijackable{httptest.NewRecorder()}}, true, false},
			{notifying{httptest.NewRecorder()}, false, true},
		} {
			wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, hijacks := w.(http.Hijacker)
				_, notifies := w.(closeNotifier)
				assert.Equal(t, tt.hijacks, hijacks, "%s of %T", name, tt.writer)
				assert.Equal(t, tt.notifies, notifies, "%s of %T", name, tt.writer)
			})).ServeHTTP(tt.writer, httptest.NewRequest(http.MethodGet, "/", nil))
		}
	}
}
