package grpclayer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// A breaker for each endpoint classifies calls by their codes.
func TestBreakerPerEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		s1 := serve(t, &n, a1)
		s2 := serve(t, &n, a2)
		// The delay is above the initial estimate of an endpoint, so that both
		// are tried.
		s1.delay.Store(int64(40 * time.Millisecond))
		s2.delay.Store(int64(40 * time.Millisecond))
		l := layer.Breaker[pick](layer.BreakerPolicy{}, layer.WithCompletion(PickCompletion), layer.WithClassifier(Classify[*Pick]))
		cc := dial(t, &n, newSource(replace(a1, a2)), WithEndpointLayer(l))

		s1.code.Store(int32(codes.NotFound)) // the server is well
		for range 100 {
			_, _ = call(t.Context(), cc)
		}
		well := s1.calls.Load()
		assert.Greater(t, well, int64(20))

		s1.code.Store(int32(codes.Internal))
		for range 100 {
			if _, err := call(t.Context(), cc); err != nil {
				require.Equal(t, codes.Internal, status.Code(err))
			}
		}
		assert.Less(t, s1.calls.Load()-well, int64(10), "shut out after a few")

		s1.code.Store(int32(codes.OK))
		time.Sleep(time.Minute)
		before := s1.calls.Load()
		for range 100 {
			_, err := call(t.Context(), cc)
			require.NoError(t, err)
		}
		assert.Greater(t, s1.calls.Load()-before, int64(5), "and it is back")
	})
}
