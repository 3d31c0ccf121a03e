package balance_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// over is a balancer with its endpoints.
type over struct {
	*pool
	servers []*server
	end     context.CancelFunc
}

func TestBalancerConforms(t *testing.T) {
	for name, n := range map[string]int{"one endpoint": 1, "three endpoints": 3} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.ServiceOf[string, *response]{
				New: func(ctx context.Context) layer.Service[string, *response] {
					ctx, cancel := context.WithCancel(ctx)
					o := &over{newPoolIn(ctx), servers(n), cancel}
					o.add(o.servers...)
					return o
				},
				Request: func(int) string { return "" },
				Fill: func(svc layer.Service[string, *response]) (free func()) {
					o := svc.(*over)
					for _, s := range o.servers {
						s.open(false)
					}
					_ = layer.Poll(o) // so that the goroutines that wait for them are there
					return func() {
						for _, s := range o.servers {
							s.open(true)
						}
					}
				},
				Served: func(svc layer.Service[string, *response]) (total int) {
					for _, s := range svc.(*over).servers {
						total += int(s.calls.Load())
					}
					return total
				},
				Close: func(svc layer.Service[string, *response]) { svc.(*over).end(); synctest.Wait() },
			})
		})
	}
}
