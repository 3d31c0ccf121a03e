package httplayer

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The status of a gRPC response that breaks off comes whatever trailers the
// server announced.
func TestGRPCBreaksOffBehindAnnouncedTrailers(t *testing.T) {
	for _, announced := range []string{
		"", "X-Sum", "Grpc-Status", "X-A, X-B", "Grpc-Status, Grpc-Message", "Grpc-Status, X-A", "X-A, X-B, X-C",
	} {
		for name, tells := range map[string]bool{"told": true, "untold": false} {
			t.Run(announced+" "+name, func(t *testing.T) {
				halfway := make(chan struct{})
				up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "application/grpc")
					if announced != "" {
						w.Header().Set("Trailer", announced)
					}
					say(w, "12345")
					flush(w)
					<-halfway
					panic(http.ErrAbortHandler)
				}))
				proxy := serve(t, Handler(endpoint(t, up, WithHTTP2(), WithConnectTimeout(patience)), WithErrorHeaders(tells)))
				req := request(t, http.MethodPost, "http://"+proxy+"/", "x")
				req.Header.Set("Content-Type", "application/grpc")
				rsp, err := client(t, true).Do(req)
				require.NoError(t, err)
				_, err = io.ReadFull(rsp.Body, make([]byte, 5))
				require.NoError(t, err)
				close(halfway)
				assert.Empty(t, read(t, rsp))
				assert.Equal(t, "13", rsp.Trailer.Get("Grpc-Status"))
				assert.Equal(t, tells, rsp.Trailer.Get("Grpc-Message") != "")
			})
		}
	}
}
