package httplayer

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// wrappers are what gives a handler a writer of its own.
func wrappers() map[string]func(http.Handler) http.Handler {
	return map[string]func(http.Handler) http.Handler{
		"Middleware": Middleware(nil),
		"AccessLog":  AccessLog(io.Discard, JSONLog, nil),
		"both":       func(h http.Handler) http.Handler { return AccessLog(io.Discard, JSONLog, nil)(Middleware(nil)(h)) },
	}
}

// A handler finds all optional interfaces. A method that the writer of the server lacks fails.
func TestWriterInterfaces(t *testing.T) {
	for name, wrap := range wrappers() {
		wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _, err := w.(http.Hijacker).Hijack()
			assert.ErrorIs(t, err, http.ErrNotSupported, name)
			_, err = w.(io.ReaderFrom).ReadFrom(strings.NewReader("x"))
			assert.NoError(t, err, name)
		})).ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/", nil))
	}
}
