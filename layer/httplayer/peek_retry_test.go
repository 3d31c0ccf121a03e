package httplayer

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// Trailers may arrive while the response is being classified. The Retry does not read them,
// because net/http is writing them.
func TestRetryTrailersRace(t *testing.T) {
	late := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", grpcType)
		w.WriteHeader(http.StatusServiceUnavailable)
		flush(w)
		say(w, "busy")
		flush(w)
		select {
		case <-time.After(peekWait): // just too late
		case <-r.Context().Done():
		}
		for _, name := range []string{"A", "B", "C", "D", "Grpc-Retry-Pushback-Ms"} {
			w.Header().Set(http.TrailerPrefix+name, "1")
		}
	}
	p := layer.RetryPolicy[*http.Request, *http.Response]{
		MaxAttempts: 20, Backoff: layer.Backoff{Min: 1, Max: 1},
		Budget: layer.NewBudget(0, 10, 1000),
		RetryIf: func(o layer.Outcome[*http.Response]) bool {
			_ = len(o.Response.Trailer)
			return true
		},
	}
	svc := NewStack().Retry(p).Service(endpoint(t, serve(t, http.HandlerFunc(late)), WithHTTP2()))
	for range 5 {
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
		require.NoError(t, err)
		require.Equal(t, "busy", read(t, rsp))
	}
}
