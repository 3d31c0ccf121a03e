package httplayer

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// The client receives the retry-after time of a rejection.
func TestHandlerRetryAfter(t *testing.T) {
	refusal := &layer.Error{Layer: "rate", Kind: layer.ErrNotReady, RetryAfter: 1200 * time.Millisecond}
	for name, tt := range map[string]struct {
		err            error
		http, grpc, at string
	}{
		"refused":            {refusal, "2", "1200", ""},
		"queued":             {&layer.Error{Layer: "queue", Kind: layer.ErrNotReady, Err: refusal}, "2", "1200", ""},
		"refused on a retry": {&layer.Error{Layer: "retry", Kind: layer.ErrRetryRejected, RetryAfter: 1200 * time.Millisecond}, "2", "1200", ""},
		"without a time":     {&layer.Error{Layer: "limit", Kind: layer.ErrNotReady}, "", "", ""},
		"not a refusal":      {&layer.Error{Layer: "retry", RetryAfter: time.Second, Err: errors.New("odd")}, "", "", ""},
		"without a word why": {refusal, "2", "1200", "quiet"},
	} {
		var opts []HandlerOption
		if tt.at == "quiet" {
			opts = append(opts, WithErrorHeaders(false))
		}
		proxy := serve(t, failing(tt.err, opts...))
		for _, two := range []bool{false, true} {
			rsp, err := client(t, two).Do(request(t, http.MethodGet, "http://"+proxy+"/", ""))
			require.NoError(t, err)
			read(t, rsp)
			assert.Equal(t, tt.http, rsp.Header.Get("Retry-After"), name)
			assert.NotContains(t, rsp.Header, "Grpc-Retry-Pushback-Ms", name)
			after, said := Replayer{}.RetryAfter(rsp, nil)
			assert.Equal(t, tt.http != "", said, name)
			assert.Equal(t, said, after == 2*time.Second, name)
		}
		req := request(t, http.MethodPost, "http://"+proxy+"/", "")
		req.Header.Set("Content-Type", "application/grpc")
		rsp, err := client(t, true).Do(req)
		require.NoError(t, err)
		read(t, rsp)
		assert.Equal(t, tt.grpc, rsp.Header.Get("Grpc-Retry-Pushback-Ms"), name)
		assert.NotContains(t, rsp.Header, "Retry-After", name)
	}
}

func TestStatusErrorText(t *testing.T) {
	assert.EqualError(t, &StatusError{Code: 503}, "status 503 Service Unavailable")
	assert.EqualError(t, &StatusError{}, "status 500 Internal Server Error")
}
