package httplayer

import (
	"encoding/binary"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
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

// A GOAWAY with an error code also reports which streams were not processed.
func TestEndpointH2GoAwayError(t *testing.T) {
	for name, tt := range map[string]struct {
		before  int // streams that were answered
		last    uint32
		refused bool
	}{
		"the first, above the last":  {0, 0, true},
		"the first, it is the last":  {0, 1, false},
		"the second, above the last": {1, 1, true},
		"the second, it is the last": {1, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, h2Server(t, 10, func(_ int, c *rawH2) {
				for range tt.before {
					c.respond(c.request(), "served")
				}
				if c.request() != 0 {
					c.frame(frameGoAway, 0, 0, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, tt.last), message.CodeEnhanceYourCalm))
					if !tt.refused {
						c.Close()
					}
				}
			}), WithHTTP2())
			for range tt.before {
				require.NoError(t, get(t.Context(), e, "/"))
			}
			req, body := withBody(t, "hello")
			req.Header.Set("Expect", "100-continue")
			_, err := e.Call(t.Context(), req)
			require.Error(t, err)
			assert.Equal(t, tt.refused, errors.Is(err, layer.ErrNotReady), "%v", err)
			assert.Zero(t, body.reads.Load())
			assert.Equal(t, tt.refused, body.closes.Load() == 0)
		})
	}
}
