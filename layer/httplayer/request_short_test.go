package httplayer

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A body with another length than its Content-Length is not a failure of the endpoint.
func TestEndpointRequestBodyLength(t *testing.T) {
	addr := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			<-r.Context().Done() // a response could arrive before the error of the request
		}
	}))
	for name, opts := range map[string][]EndpointOption{"HTTP/1.1": nil, "HTTP/2": {WithHTTP2()}} {
		for what, length := range map[string]int64{"short": 10, "long": 2} {
			t.Run(name+" "+what, func(t *testing.T) {
				e := endpoint(t, addr, opts...)
				req, err := http.NewRequest(http.MethodPost, "http://"+addr+"/", io.NopCloser(strings.NewReader("half")))
				require.NoError(t, err)
				req.ContentLength = length
				_, err = e.Call(t.Context(), req)
				require.Error(t, err)
				require.Equal(t, layer.Ignorable, Classify(layer.Outcome[*http.Response]{Err: err}))
			})
		}
	}
}
