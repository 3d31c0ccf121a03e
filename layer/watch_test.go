package layer_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// watchMaker makes services that answer with their configuration.
type watchMaker struct {
	made []*watchMade
	on   func(c string)
}

type watchMade struct {
	ctx    context.Context
	config string
	mock   *cacheKept
}

func (m *watchMaker) Make(ctx context.Context, c string) cacheService {
	k := &watchMade{ctx: ctx, config: c, mock: &cacheKept{ctx: ctx, key: c}}
	m.made = append(m.made, k)
	if m.on != nil {
		m.on(c)
	}
	if c == "" {
		return nil
	}
	return k.mock
}

type watchOf = layer.Reloadable[string, string, *cacheResponse]

func inWatch(t *testing.T, initial string, f func(t *testing.T, w *watchOf, m *watchMaker, end context.CancelCauseFunc)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer synctest.Wait()
		defer cancel(nil)
		m := &watchMaker{}
		f(t, layer.NewReloadable(ctx, initial, m.Make, layer.WithTarget[*cacheResponse]("web")), m, cancel)
	})
}

func TestWatchServesWithTheCurrentConfiguration(t *testing.T) {
	inWatch(t, "a", func(t *testing.T, w *watchOf, m *watchMaker, _ context.CancelCauseFunc) {
		require.Equal(t, "a1", cacheUse(t, t.Context(), w, "1"))
		require.NoError(t, w.Set("b"))
		require.Equal(t, "b1", cacheUse(t, t.Context(), w, "1"))
		require.Equal(t, "b", w.Config())
		require.Error(t, m.made[0].ctx.Err(), "nothing of it was open")
		require.NoError(t, m.made[1].ctx.Err())
		require.Equal(t, "reloadable changes=1 open=0\nlayer_test.cacheKept\n", layer.Describe(w).String())
	})
}

func TestWatchKeepsWhatIsEqual(t *testing.T) {
	inWatch(t, "a", func(t *testing.T, w *watchOf, m *watchMaker, _ context.CancelCauseFunc) {
		for range 3 {
			require.NoError(t, w.Set("a"))
		}
		require.Len(t, m.made, 1)
		require.NoError(t, m.made[0].ctx.Err())
	})
}

func TestWatchFinishesOnTheOldOne(t *testing.T) {
	for name, finish := range map[string]func(rsp *cacheResponse, leave func()){
		"closed":    func(rsp *cacheResponse, _ func()) { _ = rsp.Body.Close() },
		"read":      func(rsp *cacheResponse, _ func()) { _, _ = io.ReadAll(rsp.Body) },
		"abandoned": func(_ *cacheResponse, leave func()) { leave() },
	} {
		t.Run(name, func(t *testing.T) {
			inWatch(t, "a", func(t *testing.T, w *watchOf, m *watchMaker, _ context.CancelCauseFunc) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				wait := make(chan struct{})
				m.made[0].mock.serve = func(context.Context) (*cacheResponse, error) { <-wait; return cacheBody("old"), nil }
				served := make(chan *cacheResponse, 1)
				go func() {
					rsp, err := w.Call(ctx, "")
					assert.NoError(t, err)
					served <- rsp
				}()
				synctest.Wait()
				require.NoError(t, w.Set("b"))
				require.Equal(t, "b1", cacheUse(t, t.Context(), w, "1"), "the old one holds up nobody")
				require.NoError(t, m.made[0].ctx.Err(), "a call is in flight")
				close(wait)
				rsp := <-served
				time.Sleep(time.Hour)
				require.NoError(t, m.made[0].ctx.Err(), "a body is open")
				finish(rsp, cancel)
				synctest.Wait()
				require.Error(t, m.made[0].ctx.Err())
			})
		})
	}
}

func TestWatchMovesThoseWhoWait(t *testing.T) {
	inWatch(t, "a", func(t *testing.T, w *watchOf, m *watchMaker, _ context.CancelCauseFunc) {
		never := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
		m.made[0].mock.ready = never
		ready := make(chan error, 10)
		for range 10 {
			go func() { ready <- w.Ready(t.Context()) }()
		}
		time.Sleep(time.Second)
		require.ErrorIs(t, layer.Poll(w), layer.ErrNotReady)
		m.on = func(c string) {
			if c == "b" {
				m.made[1].mock.ready = never
			}
		}
		require.NoError(t, w.Set("b"))
		time.Sleep(time.Second)
		require.Empty(t, ready)
		require.Error(t, m.made[0].ctx.Err(), "nobody waits for it any more")

		begun := time.Now()
		require.NoError(t, w.Set("c"))
		for range 10 {
			require.NoError(t, <-ready)
		}
		require.Zero(t, time.Since(begun))

		require.NoError(t, w.Set("b"))
		m.made[3].mock.ready = never
		left, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		require.ErrorIs(t, w.Ready(left), context.DeadlineExceeded)
	})
}

func TestWatchSurvivesAPanicOfMake(t *testing.T) {
	inWatch(t, "a", func(t *testing.T, w *watchOf, m *watchMaker, _ context.CancelCauseFunc) {
		m.on = func(c string) {
			if c == "bad" {
				panic("boom")
			}
		}
		for range 2 {
			require.PanicsWithValue(t, "boom", func() { _ = w.Set("bad") })
		}
		require.Equal(t, "a", w.Config())
		require.Equal(t, "a1", cacheUse(t, t.Context(), w, "1"))
		require.NoError(t, m.made[0].ctx.Err())
		require.Error(t, m.made[1].ctx.Err(), "what had begun to be made is let go")
		require.NoError(t, w.Set("b"))
		require.Equal(t, "b1", cacheUse(t, t.Context(), w, "1"))
	})
}

func TestWatchKeepsTheOldOneWhereNothingIsMade(t *testing.T) {
	inWatch(t, "a", func(t *testing.T, w *watchOf, m *watchMaker, _ context.CancelCauseFunc) {
		err := w.Set("")
		require.EqualError(t, err, "reloadable web: no service for the configuration")
		require.NotErrorIs(t, err, layer.ErrClosed)
		require.Error(t, m.made[1].ctx.Err())
		require.Equal(t, "a1", cacheUse(t, t.Context(), w, "1"))
	})
}

func TestWatchMayBeginWithNothing(t *testing.T) {
	inWatch(t, "", func(t *testing.T, w *watchOf, _ *watchMaker, _ context.CancelCauseFunc) {
		_, err := w.Call(t.Context(), "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed)
		require.ErrorIs(t, layer.Poll(w), layer.ErrNotReady)
		ready := make(chan error)
		go func() { ready <- w.Ready(t.Context()) }()
		synctest.Wait()
		require.NoError(t, w.Set("a"))
		require.NoError(t, <-ready)
		require.Equal(t, "a1", cacheUse(t, t.Context(), w, "1"))
	})
}

func TestWatchEndsWithItsContext(t *testing.T) {
	inWatch(t, "a", func(t *testing.T, w *watchOf, m *watchMaker, end context.CancelCauseFunc) {
		over := errors.New("over")
		m.made[0].mock.ready = func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
		ready := make(chan error)
		go func() { ready <- w.Ready(t.Context()) }()
		synctest.Wait()
		end(over)
		synctest.Wait()
		_, err := w.Call(t.Context(), "")
		for _, err := range []error{err, <-ready, layer.Poll(w), w.Ready(t.Context()), w.Set("b")} {
			require.ErrorIs(t, err, layer.ErrClosed)
			require.ErrorIs(t, err, over)
		}
		require.Error(t, m.made[0].ctx.Err())
		require.Len(t, m.made, 1)
	})
}

// The closed service of one configuration does not close the Reloadable.
func TestWatchOutlivesWhatHasClosed(t *testing.T) {
	inWatch(t, "a", func(t *testing.T, w *watchOf, m *watchMaker, _ context.CancelCauseFunc) {
		gone := errors.New("gone")
		closed := &layer.Error{Layer: "balance", Kind: layer.ErrClosed, Err: gone}
		m.made[0].mock.ready = func(context.Context) error { return closed }
		m.made[0].mock.serve = func(context.Context) (*cacheResponse, error) { return nil, closed }
		_, err := w.Call(t.Context(), "")
		for _, err := range []error{err, layer.Poll(w)} {
			require.ErrorIs(t, err, layer.ErrNotReady)
			require.NotErrorIs(t, err, layer.ErrClosed)
			require.ErrorContains(t, err, "gone")
		}
		require.ErrorIs(t, err, gone)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, w.Ready(short), context.DeadlineExceeded)

		ready := make(chan error)
		go func() { ready <- w.Ready(t.Context()) }()
		synctest.Wait()
		require.NoError(t, w.Set("b"))
		require.NoError(t, <-ready)
	})
}

// A change of one setting must not reset other state: a limit that loses its count
// admits twice as many requests (traefik#13913).
func TestWatchStateOutsideSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		endpoint := layer.Func[string, *cacheResponse](func(context.Context, string) (*cacheResponse, error) {
			return cacheBody("hello"), nil
		})
		limited := layer.Limit[string, *cacheResponse](1)(endpoint)
		w := layer.NewReloadable(ctx, time.Second, func(_ context.Context, limit time.Duration) cacheService {
			return layer.Timeout[string, *cacheResponse](limit)(limited)
		})
		rsp, err := w.Call(ctx, "")
		require.NoError(t, err)
		require.NoError(t, w.Set(time.Minute))
		_, err = w.Call(ctx, "")
		require.ErrorIs(t, err, layer.ErrNotReady, "the slot is taken")
		require.NoError(t, rsp.Body.Close())
		require.Equal(t, "hello", cacheUse(t, ctx, w, ""))
	})
}
