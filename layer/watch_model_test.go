package layer_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// The model: a configuration lives while it is the current one or something of
// it is open, and a request is served by the one that is current when it comes.
func TestWatchModel(t *testing.T) {
	type open struct {
		config int
		rsp    *cacheResponse
		leave  context.CancelFunc
	}
	rapid.Check(t, func(rt *rapid.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		lives := map[int][]context.Context{} // of each configuration, in the order of their making
		w := layer.NewReloadable(ctx, 0, func(ctx context.Context, c int) cacheService {
			lives[c] = append(lives[c], ctx)
			return layer.Func[string, *cacheResponse](func(context.Context, string) (*cacheResponse, error) {
				return cacheBody(fmt.Sprint(c)), nil
			})
		})
		var (
			current int
			life    = lives[0][0]
			opened  []open
			holds   = map[context.Context]int{}
			of      = map[*cacheResponse]context.Context{}
		)
		rt.Repeat(map[string]func(*rapid.T){
			"set": func(rt *rapid.T) {
				c := rapid.IntRange(0, 3).Draw(rt, "config")
				before := len(lives[c])
				require.NoError(rt, w.Set(c))
				if c == current {
					require.Len(rt, lives[c], before)
					return
				}
				require.Len(rt, lives[c], before+1)
				current, life = c, lives[c][before]
			},
			"call": func(rt *rapid.T) {
				ctx, leave := context.WithCancel(ctx)
				rsp, err := w.Call(ctx, "")
				require.NoError(rt, err)
				opened = append(opened, open{current, rsp, leave})
				holds[life]++
				of[rsp] = life
			},
			"finish": func(rt *rapid.T) {
				if len(opened) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(opened)-1).Draw(rt, "which")
				o := opened[i]
				opened = append(opened[:i:i], opened[i+1:]...)
				text := make([]byte, 8)
				n, _ := o.rsp.Body.Read(text)
				require.Equal(rt, fmt.Sprint(o.config), string(text[:n]))
				require.NoError(rt, o.rsp.Body.Close())
				o.leave()
				holds[of[o.rsp]]--
			},
			"": func(rt *rapid.T) {
				require.Equal(rt, current, w.Config())
				require.EqualValues(rt, holds[life], layer.Describe[string, *cacheResponse](w).State.Get("open"))
				for _, all := range lives {
					for _, l := range all {
						require.Equal(rt, l == life || holds[l] > 0, l.Err() == nil)
					}
				}
			},
		})
		for _, o := range opened {
			o.leave()
		}
	})
}

// watchStamp is a layer that notes which configuration it is of.
func watchStamp(c int) layer.Layer[*[]int, *cacheResponse] {
	return layer.MapRequest[*[]int, *cacheResponse](func(seen *[]int) *[]int {
		*seen = append(*seen, c)
		return seen
	})
}

// The storm: the configuration changes every 100 µs under load. Each request
// is served, by one configuration in all its layers, which is alive until the
// body was closed.
func TestWatchStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var alive atomic.Int64
		mk := func(life context.Context, c int) layer.Service[*[]int, *cacheResponse] {
			alive.Add(1)
			context.AfterFunc(life, func() { alive.Add(-1) })
			return layer.NewStack[*[]int, *cacheResponse]().With("a", watchStamp(c)).With("b", watchStamp(c)).
				Service(layer.Func[*[]int, *cacheResponse](func(_ context.Context, seen *[]int) (*cacheResponse, error) {
					time.Sleep(time.Duration(c%7) * 30 * time.Microsecond)
					*seen = append(*seen, c)
					return &cacheResponse{Body: &watchBody{life: life}}, nil
				}))
		}
		w := layer.NewReloadable(ctx, 0, mk)
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				for range 100 {
					var seen []int
					rsp, err := w.Call(ctx, &seen)
					if !assert.NoError(t, err) {
						return
					}
					time.Sleep(time.Duration(i) * 20 * time.Microsecond)
					assert.NoError(t, rsp.Body.Close(), "its configuration had gone")
					assert.Equal(t, []int{seen[0], seen[0], seen[0]}, seen)
					assert.NoError(t, w.Ready(ctx))
				}
			})
		}
		stop := make(chan struct{})
		var changer sync.WaitGroup
		changes := 0
		changer.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond):
					changes++
					assert.NoError(t, w.Set(changes))
				}
			}
		})
		callers.Wait()
		close(stop)
		changer.Wait()
		require.Greater(t, changes, 50)
		synctest.Wait()
		require.EqualValues(t, 1, alive.Load(), "only the last one is left")
		cancel()
		synctest.Wait()
		require.Zero(t, alive.Load())
	})
}

// watchBody fails when it is closed after the life of its service.
type watchBody struct{ life context.Context }

func (b *watchBody) Read([]byte) (int, error) { return 0, b.life.Err() }
func (b *watchBody) Close() error             { return b.life.Err() }

// The same in real time, for the race detector and the scheduler.
func TestWatchChangesUnderCalls(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := layer.NewReloadable(ctx, 0, func(life context.Context, c int) layer.Service[int, int] {
		return layer.Func[int, int](func(context.Context, int) (int, error) { return c, life.Err() })
	})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			last := 0
			for range 5000 {
				c, err := w.Call(ctx, 0)
				if !assert.NoError(t, err) || !assert.GreaterOrEqual(t, c, last, "back to an older one") {
					return
				}
				last = c
			}
		})
	}
	for c := range 2000 {
		require.NoError(t, w.Set(c))
		require.NoError(t, w.Ready(ctx))
	}
	all.Wait()
}
