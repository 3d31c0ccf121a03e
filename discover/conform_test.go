package discover_test

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/resolve"
)

type kitService = layer.Service[*layertest.Request, *layertest.Response]

func TestEndpointConforms(t *testing.T) {
	layertest.Run(t, layertest.Layer{New: func(ctx context.Context, next kitService) (svc kitService) {
		one := resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
			return func(yield func(resolve.Update, error) bool) {
				yield(add(at(1)), nil)
				<-ctx.Done()
			}
		})
		go func() {
			mk := func(context.Context, discover.Target) kitService { return next }
			for c := range discover.Endpoints(ctx, one, "web", mk) {
				svc = c.Added[0].Service
			}
		}()
		synctest.Wait()
		return svc
	}})
}
