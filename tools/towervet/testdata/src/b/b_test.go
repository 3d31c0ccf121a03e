package b

import (
	"context"

	"github.com/gotower/gotower/layer"
)

func isReady(ctx context.Context, svc layer.Service[int, int]) bool {
	if svc.Ready(ctx) != nil {
		return false
	}
	_, err := svc.Call(ctx, 1)
	return err == nil
}
