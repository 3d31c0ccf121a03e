package httplayer

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request with Connection: close does not end a connection of HTTP/2, because
// other requests share it.
func TestHTTP2ConnectionClose(t *testing.T) {
	for name, values := range map[string][]string{
		"plain": {"close"}, "in capitals": {"Close"}, "with others": {"keep-alive, close"}, "after others": {"te", " close "},
	} {
		t.Run(name, func(t *testing.T) {
			answer := make(chan struct{})
			e := endpoint(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.NotContains(t, r.Header, "Connection")
				flush(w)
				if r.URL.Path == "/waits" {
					<-answer
				}
			})), WithHTTP2())
			waits, err := e.Call(t.Context(), request(t, http.MethodGet, "http://web/waits", ""))
			require.NoError(t, err)
			conn := e.h2.current.Load()
			req := request(t, http.MethodGet, "http://web/", "")
			req.Header["Connection"] = values
			for range 2 {
				rsp, err := e.Call(t.Context(), req)
				require.NoError(t, err)
				read(t, rsp)
				require.NoError(t, get(t.Context(), e, "/"))
			}
			assert.Equal(t, values, req.Header["Connection"], "the request of the caller is unchanged")
			close(answer)
			read(t, waits)
			assert.Same(t, conn, e.h2.current.Load())
			assert.NoError(t, conn.Err())
		})
	}
}
