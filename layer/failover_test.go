package layer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

type failoverService = layertest.Mock[string, string]

// failoverMock returns a service that answers every request with its name.
func failoverMock(name string, ready bool) *failoverService {
	m := layertest.NewMock[string, string]()
	m.Serve(func(context.Context, string) (string, error) { return name, nil })
	if ready {
		m.Allow(layertest.Unlimited)
	}
	return m
}

func inFailover(
	t *testing.T, after time.Duration, f func(t *testing.T, svc layer.Service[string, string], primary, fallback *failoverService),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		primary, fallback := failoverMock("primary", true), failoverMock("fallback", true)
		f(t, layer.Failover[string, string](primary, fallback, after, layer.WithTarget[string]("web")), primary, fallback)
	})
}

// failoverTo names the service that serves a request now.
func failoverTo(t *testing.T, svc layer.Service[string, string]) string {
	t.Helper()
	got, err := svc.Call(t.Context(), "")
	if err != nil {
		require.ErrorIs(t, err, layer.ErrNotReady)
		return "rejected"
	}
	return got
}

func TestFailoverAfter(t *testing.T) {
	inFailover(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, _ *failoverService) {
		require.Equal(t, "primary", failoverTo(t, svc))
		primary.Deny()
		require.Equal(t, "rejected", failoverTo(t, svc))
		time.Sleep(10*time.Second - 1)
		require.Equal(t, "rejected", failoverTo(t, svc))
		time.Sleep(time.Nanosecond)
		for range 3 {
			require.Equal(t, "fallback", failoverTo(t, svc))
			time.Sleep(time.Minute)
		}
		require.Equal(t, ""+
			"failover   after=10s fell_back=3 unready_for=3m10s\n"+
			"  primary\n  layertest.Mock\n  fallback\n  layertest.Mock\n", layer.Describe(svc).String())

		primary.Allow(1)
		require.Equal(t, "primary", failoverTo(t, svc), "at once")
		require.Equal(t, "rejected", failoverTo(t, svc), "the duration starts again")
		time.Sleep(10 * time.Second)
		require.Equal(t, "fallback", failoverTo(t, svc))
	})
}

func TestFailoverAtOnce(t *testing.T) {
	for _, after := range []time.Duration{0} {
		inFailover(t, after, func(t *testing.T, svc layer.Service[string, string], primary, _ *failoverService) {
			primary.Deny()
			require.Equal(t, "fallback", failoverTo(t, svc))
			require.NoError(t, svc.Ready(t.Context()))
			primary.Allow(1)
			require.Equal(t, "primary", failoverTo(t, svc))
		})
	}
}

func TestFailoverClosedPrimary(t *testing.T) {
	inFailover(t, time.Hour, func(t *testing.T, svc layer.Service[string, string], primary, fallback *failoverService) {
		primary.Close()
		require.Equal(t, "fallback", failoverTo(t, svc), "there is nothing to wait for")
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

func TestFailoverNeitherReady(t *testing.T) {
	inFailover(t, 0, func(t *testing.T, svc layer.Service[string, string], primary, fallback *failoverService) {
		primary.Deny()
		fallback.Deny()
		_, err := svc.Call(t.Context(), "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.EqualError(t, err, "failover web: not ready: neither primary nor fallback is ready: "+
			"mock: not ready: nothing allowed")
		fallback.Close()
		_, err = svc.Call(t.Context(), "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed, "primary may be ready again")
		require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
		require.NotErrorIs(t, layer.Poll(svc), layer.ErrClosed)
	})
}

// A request that primary admitted is never sent to fallback.
func TestFailoverPassesFailures(t *testing.T) {
	inFailover(t, 0, func(t *testing.T, svc layer.Service[string, string], primary, fallback *failoverService) {
		failed := errors.New("failed")
		primary.Serve(func(context.Context, string) (string, error) { return "", failed })
		_, err := svc.Call(t.Context(), "")
		require.Equal(t, failed, err)
		require.Zero(t, fallback.Calls())
	})
}

// A rejection of a canceled caller does not count.
func TestFailoverIgnoresCanceledCallers(t *testing.T) {
	inFailover(t, 0, func(t *testing.T, svc layer.Service[string, string], _, fallback *failoverService) {
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := svc.Call(gone, "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, context.Canceled)
		require.Nil(t, layer.Describe(svc).State.Get("unready_for"))
		require.Zero(t, fallback.Calls())
	})
}

// A response proves that primary was ready when its request started, but not that it is
// ready now.
func TestFailoverLongRequests(t *testing.T) {
	inFailover(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, fallback *failoverService) {
		primary.Serve(func(context.Context, string) (string, error) { time.Sleep(time.Minute); return "slow", nil })
		served := make(chan string, 2)
		slow := func() { served <- failoverTo(t, svc) }
		go slow() // before anything was rejected
		time.Sleep(time.Second)
		primary.Deny()
		require.Equal(t, "rejected", failoverTo(t, svc))
		time.Sleep(time.Second)
		primary.Allow(1)
		go slow() // when primary had been unready for a second
		time.Sleep(time.Second)
		require.Equal(t, "rejected", failoverTo(t, svc))
		time.Sleep(9 * time.Second)
		require.Equal(t, "fallback", failoverTo(t, svc))
		require.Equal(t, "slow", <-served)
		require.Equal(t, "fallback", failoverTo(t, svc), "the first began before the rejections")
		require.Equal(t, "slow", <-served)
		require.Equal(t, "rejected", failoverTo(t, svc), "the second began after them")
		time.Sleep(10 * time.Second)
		require.Equal(t, "fallback", failoverTo(t, svc))
		require.Equal(t, 3, fallback.Calls())
	})
}

func TestFailoverLateResponse(t *testing.T) {
	inFailover(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, _ *failoverService) {
		primary.Deny()
		require.Equal(t, "rejected", failoverTo(t, svc))
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
		require.Equal(t, "primary", failoverTo(t, svc))
		time.Sleep(53 * time.Second)
		require.Equal(t, "rejected", failoverTo(t, svc))
		require.Equal(t, "slow", <-late)
		require.Equal(t, "rejected", failoverTo(t, svc), "unready for 6 seconds")
		time.Sleep(4 * time.Second)
		require.Equal(t, "fallback", failoverTo(t, svc))
	})
}

// Ready detects the recovery of primary without a request.
func TestFailoverReadyResets(t *testing.T) {
	inFailover(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, _ *failoverService) {
		for _, back := range []func() error{
			func() error { primary.Allow(1); return layer.Poll(svc) },
			func() error { time.AfterFunc(time.Second, func() { primary.Allow(1) }); return svc.Ready(t.Context()) },
		} {
			primary.Deny()
			require.Equal(t, "rejected", failoverTo(t, svc))
			require.NoError(t, back())
			primary.Deny()
			time.Sleep(20 * time.Second)
			require.Equal(t, "rejected", failoverTo(t, svc))
			primary.Allow(1)
			require.Equal(t, "primary", failoverTo(t, svc))
		}
	})
}

// A queued request goes to fallback when after is over, and to primary when primary is
// ready.
func TestFailoverUnderAQueue(t *testing.T) {
	inFailover(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, _ *failoverService) {
		svc = layer.Queue[string, string](10, time.Minute)(svc)
		primary.Deny()
		begun := time.Now()
		require.Equal(t, "fallback", failoverTo(t, svc))
		require.Equal(t, 10*time.Second, time.Since(begun))
		primary.Allow(1)
		require.Equal(t, "primary", failoverTo(t, svc))

		begun = time.Now()
		time.AfterFunc(3*time.Second, func() { primary.Allow(1) })
		require.Equal(t, "primary", failoverTo(t, svc))
		require.Equal(t, 3*time.Second, time.Since(begun))
	})
}

func TestFailoverReadyWaitsForBoth(t *testing.T) {
	for name, first := range map[string]func(primary, fallback *failoverService){
		"primary":  func(primary, _ *failoverService) { primary.Allow(1) },
		"fallback": func(_, fallback *failoverService) { fallback.Allow(1) },
		"primary, when fallback has closed": func(primary, fallback *failoverService) {
			fallback.Close()
			time.Sleep(time.Nanosecond)
			primary.Allow(1)
		},
		"fallback, when primary has closed": func(primary, fallback *failoverService) {
			primary.Close()
			time.Sleep(time.Nanosecond)
			fallback.Allow(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFailover(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, fallback *failoverService) {
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

func TestFailoverReadyEnds(t *testing.T) {
	inFailover(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, fallback *failoverService) {
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

// Ready returns the cause of ctx if ctx ends at the same time as after.
func TestFailoverReadyEndsWithBothAtOnce(t *testing.T) {
	gone := errors.New("gone")
	for range 100 {
		inFailover(t, 10*time.Second, func(t *testing.T, svc layer.Service[string, string], primary, fallback *failoverService) {
			primary.Deny()
			fallback.Deny()
			ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, gone)
			defer cancel()
			require.ErrorIs(t, svc.Ready(ctx), gone)
		})
	}
}
