package layer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

type switchMock = layertest.Mock[string, string]

// switchSays answers every request with its name.
func switchSays(name string, ready bool) *switchMock {
	m := layertest.NewMock[string, string]()
	m.Serve(func(context.Context, string) (string, error) { return name, nil })
	if ready {
		m.Allow(layertest.Unlimited)
	}
	return m
}

func inSwitch(
	t *testing.T, after time.Duration, f func(t *testing.T, svc layer.Service[string, string], primary, fallback *switchMock),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		primary, fallback := switchSays("primary", true), switchSays("fallback", true)
		f(t, layer.Failover[string, string](primary, fallback, after, layer.WithTarget[string]("web")), primary, fallback)
	})
}

// switchTo is who serves a request made now, or why nobody does.
func switchTo(t *testing.T, svc layer.Service[string, string]) string {
	t.Helper()
	got, err := svc.Call(t.Context(), "")
	if err != nil {
		require.ErrorIs(t, err, layer.ErrNotReady)
		return "refused"
	}
	return got
}

func TestSwitchFallsBackAfterAWhile(t *testing.T) {
	inSwitch(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, _ *switchMock) {
		require.Equal(t, "primary", switchTo(t, svc))
		primary.Deny()
		require.Equal(t, "refused", switchTo(t, svc))
		time.Sleep(10*time.Second - 1)
		require.Equal(t, "refused", switchTo(t, svc))
		time.Sleep(time.Nanosecond)
		for range 3 {
			require.Equal(t, "fallback", switchTo(t, svc))
			time.Sleep(time.Minute)
		}
		require.Equal(t, ""+
			"switch     after=10s fell_back=3 unready_for=3m10s\n"+
			"  primary\n  layertest.Mock\n  fallback\n  layertest.Mock\n", layer.Describe(svc).String())

		primary.Allow(1)
		require.Equal(t, "primary", switchTo(t, svc), "at once")
		require.Equal(t, "refused", switchTo(t, svc), "its time begins anew")
		time.Sleep(10 * time.Second)
		require.Equal(t, "fallback", switchTo(t, svc))
	})
}

func TestSwitchWithoutPatience(t *testing.T) {
	for _, after := range []time.Duration{0} {
		inSwitch(t, after, func(t *testing.T, svc layer.Service[string, string], primary, _ *switchMock) {
			primary.Deny()
			require.Equal(t, "fallback", switchTo(t, svc))
			require.NoError(t, svc.Ready(t.Context()))
			primary.Allow(1)
			require.Equal(t, "primary", switchTo(t, svc))
		})
	}
}

func TestSwitchOfAClosedPrimary(t *testing.T) {
	inSwitch(t, time.Hour, func(t *testing.T, svc layer.Service[string, string], primary, fallback *switchMock) {
		primary.Close()
		require.Equal(t, "fallback", switchTo(t, svc), "there is nothing to wait for")
		require.NoError(t, svc.Ready(t.Context()))
		fallback.Deny()
		_, err := svc.Call(t.Context(), "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed)
		fallback.Close()
		_, err = svc.Call(t.Context(), "")
		require.ErrorIs(t, err, layer.ErrClosed)
		require.ErrorIs(t, svc.Ready(t.Context()), layer.ErrClosed)
	})
}

func TestSwitchSaysThatNeitherIsReady(t *testing.T) {
	inSwitch(t, 0, func(t *testing.T, svc layer.Service[string, string], primary, fallback *switchMock) {
		primary.Deny()
		fallback.Deny()
		_, err := svc.Call(t.Context(), "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.EqualError(t, err, "switch web: not ready: neither primary nor fall-back: "+
			"mock: not ready: nothing allowed\nmock: not ready: nothing allowed")
		fallback.Close()
		_, err = svc.Call(t.Context(), "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed, "primary may come back")
		require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
		require.NotErrorIs(t, layer.Poll(svc), layer.ErrClosed)
	})
}

// When it is worth trying again is what the one says that may be back sooner.
func TestSwitchSaysWhenEitherMayBeReady(t *testing.T) {
	refuses := func(after time.Duration) layer.Service[int, int] {
		return layer.Func[int, int](func(context.Context, int) (int, error) {
			return 0, &switchRefusalError{&layer.Error{Layer: "busy", Kind: layer.ErrNotReady, RetryAfter: after}}
		})
	}
	for _, tt := range []struct{ primary, fallback, want time.Duration }{
		{30 * time.Second, time.Second, time.Second},
		{time.Second, 30 * time.Second, time.Second},
		{30 * time.Second, 0, 0},
		{0, 30 * time.Second, 0},
		{0, 0, 0},
	} {
		_, err := layer.Failover(refuses(tt.primary), refuses(tt.fallback), 0).Call(t.Context(), 1)
		after, ok := layer.RetryAfter(err)
		require.Equal(t, tt.want, after)
		require.Equal(t, tt.want > 0, ok)
		require.ErrorAs(t, err, new(*switchRefusalError), "both are there still")
	}
}

// One that is closed does not come back sooner than the other.
func TestSwitchSaysWhenTheOneMayBeReadyThatIsNotClosed(t *testing.T) {
	refuses := func(kind error, after time.Duration) layer.Service[int, int] {
		return layer.Func[int, int](func(context.Context, int) (int, error) {
			return 0, &layer.Error{Layer: "busy", Kind: kind, RetryAfter: after}
		})
	}
	for _, after := range []time.Duration{0, time.Millisecond} { // of the closed one: it means nothing
		closed, busy := refuses(layer.ErrClosed, after), refuses(layer.ErrNotReady, time.Second)
		for name, svc := range map[string]layer.Service[int, int]{
			"primary": layer.Failover(closed, busy, 0), "fallback": layer.Failover(busy, closed, 0),
		} {
			_, err := svc.Call(t.Context(), 1)
			require.NotErrorIs(t, err, layer.ErrClosed, name)
			got, ok := layer.RetryAfter(err)
			require.True(t, ok, name)
			require.Equal(t, time.Second, got, name)
		}
	}
}

type switchRefusalError struct{ error }

func (r *switchRefusalError) Unwrap() error { return r.error }

// Errors of a primary that served are the caller's: a request is never sent
// twice.
func TestSwitchPassesFailures(t *testing.T) {
	inSwitch(t, 0, func(t *testing.T, svc layer.Service[string, string], primary, fallback *switchMock) {
		failed := errors.New("failed")
		primary.Serve(func(context.Context, string) (string, error) { return "", failed })
		_, err := svc.Call(t.Context(), "")
		require.Equal(t, failed, err)
		require.Zero(t, fallback.Calls())
	})
}

// A caller who has gone is refused, which says nothing of primary.
func TestSwitchIgnoresCallersWhoHaveGone(t *testing.T) {
	inSwitch(t, 0, func(t *testing.T, svc layer.Service[string, string], _, fallback *switchMock) {
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := svc.Call(gone, "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, context.Canceled)
		require.Nil(t, layer.Describe(svc).State.Get("unready_for"))
		require.Zero(t, fallback.Calls())
	})
}

// What primary has admitted it serves to the end, though it is unready by then;
// and that it ends tells that it was ready when it began, not now.
func TestSwitchNeverMidRequest(t *testing.T) {
	inSwitch(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, fallback *switchMock) {
		primary.Serve(func(context.Context, string) (string, error) { time.Sleep(time.Minute); return "slow", nil })
		served := make(chan string, 2)
		slow := func() { served <- switchTo(t, svc) }
		go slow() // before anything was refused
		time.Sleep(time.Second)
		primary.Deny()
		require.Equal(t, "refused", switchTo(t, svc))
		time.Sleep(time.Second)
		primary.Allow(1)
		go slow() // when primary had been unready for a second
		time.Sleep(time.Second)
		require.Equal(t, "refused", switchTo(t, svc))
		time.Sleep(9 * time.Second)
		require.Equal(t, "fallback", switchTo(t, svc))
		require.Equal(t, "slow", <-served)
		require.Equal(t, "fallback", switchTo(t, svc), "the first began before the refusals")
		require.Equal(t, "slow", <-served)
		require.Equal(t, "fallback", switchTo(t, svc), "the second did not end them: there was another after it")
		require.Equal(t, 3, fallback.Calls())
	})
}

// A response that comes late tells of the time when its request was admitted,
// and nothing of what came after.
func TestSwitchLateResponseIsOldNews(t *testing.T) {
	inSwitch(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, _ *switchMock) {
		primary.Deny()
		require.Equal(t, "refused", switchTo(t, svc))
		time.Sleep(time.Second)
		primary.Serve(func(context.Context, string) (string, error) { time.Sleep(time.Minute); return "slow", nil })
		primary.Allow(1)
		late := make(chan string)
		go func() {
			answer, _ := svc.Call(t.Context(), "late")
			late <- answer
		}()
		time.Sleep(time.Second)
		primary.Serve(func(context.Context, string) (string, error) { return "primary", nil })
		primary.Allow(1)
		require.Equal(t, "primary", switchTo(t, svc))
		time.Sleep(53 * time.Second)
		require.Equal(t, "refused", switchTo(t, svc))
		require.Equal(t, "slow", <-late)
		require.Equal(t, "refused", switchTo(t, svc), "unready for 6 seconds")
		time.Sleep(4 * time.Second)
		require.Equal(t, "fallback", switchTo(t, svc))
	})
}

// Ready of a waiter sees that primary was back, though no request did.
func TestSwitchReadyTellsThatPrimaryWasBack(t *testing.T) {
	inSwitch(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, _ *switchMock) {
		for _, back := range []func() error{
			func() error { primary.Allow(1); return layer.Poll(svc) },
			func() error { time.AfterFunc(time.Second, func() { primary.Allow(1) }); return svc.Ready(t.Context()) },
		} {
			primary.Deny()
			require.Equal(t, "refused", switchTo(t, svc))
			require.NoError(t, back())
			primary.Deny()
			time.Sleep(20 * time.Second)
			require.Equal(t, "refused", switchTo(t, svc))
			primary.Allow(1)
			require.Equal(t, "primary", switchTo(t, svc))
		}
	})
}

// One who waits above is served by fallback as soon as primary's time is over,
// and by primary as soon as it is back.
func TestSwitchUnderAQueue(t *testing.T) {
	inSwitch(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, _ *switchMock) {
		svc = layer.Queue[string, string](10, time.Minute)(svc)
		primary.Deny()
		begun := time.Now()
		require.Equal(t, "fallback", switchTo(t, svc))
		require.Equal(t, 10*time.Second, time.Since(begun))
		primary.Allow(1)
		require.Equal(t, "primary", switchTo(t, svc))

		begun = time.Now()
		time.AfterFunc(3*time.Second, func() { primary.Allow(1) })
		require.Equal(t, "primary", switchTo(t, svc))
		require.Equal(t, 3*time.Second, time.Since(begun))
	})
}

func TestSwitchReadyTakesWhoeverIsFirst(t *testing.T) {
	for name, first := range map[string]func(primary, fallback *switchMock){
		"primary":                           func(primary, _ *switchMock) { primary.Allow(1) },
		"fallback":                          func(_, fallback *switchMock) { fallback.Allow(1) },
		"primary, when fallback has closed": func(primary, fallback *switchMock) { fallback.Close(); time.Sleep(time.Nanosecond); primary.Allow(1) },
		"fallback, when primary has closed": func(primary, fallback *switchMock) { primary.Close(); time.Sleep(time.Nanosecond); fallback.Allow(1) },
	} {
		t.Run(name, func(t *testing.T) {
			inSwitch(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, fallback *switchMock) {
				primary.Deny()
				fallback.Deny()
				ready := make(chan error)
				go func() { ready <- svc.Ready(t.Context()) }()
				time.Sleep(20 * time.Second)
				synctest.Wait()
				require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
				first(primary, fallback)
				require.NoError(t, <-ready)
				require.NoError(t, layer.Poll(svc))
			})
		})
	}
}

func TestSwitchReadyEnds(t *testing.T) {
	inSwitch(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, fallback *switchMock) {
		primary.Deny()
		fallback.Deny()
		for _, patience := range []time.Duration{time.Second, time.Minute} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			begun := time.Now()
			require.ErrorIs(t, svc.Ready(ctx), context.DeadlineExceeded)
			require.Equal(t, patience, time.Since(begun))
			cancel()
		}
		ready := make(chan error)
		go func() { ready <- svc.Ready(t.Context()) }()
		synctest.Wait()
		primary.Close()
		fallback.Close()
		require.ErrorIs(t, <-ready, layer.ErrClosed)
	})
}

// switchBroken panics in Ready when it has to wait.
type switchBroken struct{ *switchMock }

func (b switchBroken) Ready(ctx context.Context) error {
	if err := layer.Poll(b.switchMock); err == nil || ctx.Err() != nil {
		return err
	}
	panic("boom")
}

// Ready of primary waits on a goroutine of its own: a panic there is an error.
func TestSwitchReadyPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fallback := switchSays("fallback", false)
		svc := layer.Failover[string, string](switchBroken{switchSays("primary", false)}, fallback, 0)
		var panicked *layer.PanicError
		require.ErrorAs(t, svc.Ready(t.Context()), &panicked)
		assert.Equal(t, "boom", panicked.Value)
		svc = layer.Failover[string, string](fallback, switchBroken{switchSays("primary", false)}, 0)
		assert.PanicsWithValue(t, "boom", func() { _ = svc.Ready(t.Context()) })
	})
}

// The moment when the time of primary is over may be that when ctx ends; who
// waits is told of ctx all the same.
func TestSwitchReadyEndsWithBothAtOnce(t *testing.T) {
	gone := errors.New("gone")
	for range 100 {
		inSwitch(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, fallback *switchMock) {
			primary.Deny()
			fallback.Deny()
			ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, gone)
			defer cancel()
			require.ErrorIs(t, svc.Ready(ctx), gone)
		})
	}
}
