package layertest

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

func double(_ context.Context, n int) (string, error) { return strconv.Itoa(2 * n), nil }

func TestMockRejectsWithoutCapacity(t *testing.T) {
	m := NewMock[int, string]()
	m.Serve(double)
	_, err := m.Call(t.Context(), 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.NotErrorIs(t, err, layer.ErrClosed)
	require.ErrorIs(t, layer.Poll(m), layer.ErrNotReady)

	m.Allow(2)
	m.Allow(-5)
	require.NoError(t, layer.Poll(m))
	for n := range 2 {
		rsp, err := m.Call(t.Context(), n)
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(2*n), rsp)
	}
	_, err = m.Call(t.Context(), 3)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.Equal(t, []int{0, 1}, m.Requests())
	require.Equal(t, 4, m.Calls())
	require.Equal(t, 2, m.ReadyCalls())
	require.Equal(t, 1, m.MaxInFlight())
	require.Zero(t, m.InFlight())
}

func TestMockUnlimitedAndDenied(t *testing.T) {
	m := NewMock[int, string]()
	m.Serve(double)
	m.Allow(Unlimited)
	m.Allow(Unlimited)
	for n := range 1000 {
		_, err := m.Call(t.Context(), n)
		require.NoError(t, err)
	}
	m.Deny()
	_, err := m.Call(t.Context(), 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
}

func TestMockLooksAtCtxFirst(t *testing.T) {
	m := NewMock[int, string]()
	m.Serve(double)
	m.Allow(1)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errCancel)
	_, err := m.Call(ctx, 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, errCancel)
	require.NoError(t, m.Ready(ctx), "there is capacity")
	_, err = m.Call(t.Context(), 1)
	require.NoError(t, err, "the refusal must not use it up")
	require.ErrorIs(t, m.Ready(ctx), errCancel)
}

func TestMockReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMock[int, string]()
		ready := make(chan error, 10)
		for range 10 {
			go func() { ready <- m.Ready(t.Context()) }()
		}
		synctest.Wait()
		require.Empty(t, ready)
		m.Allow(1)
		synctest.Wait()
		require.Len(t, ready, 10, "one admission wakes all waiting calls of Ready")
		for range 10 {
			require.NoError(t, <-ready)
		}
		m.Deny()
		go func() { ready <- m.Ready(t.Context()) }()
		synctest.Wait()
		m.Close()
		require.ErrorIs(t, <-ready, layer.ErrClosed)
	})
}

func TestMockCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMock[int, string]()
		m.Allow(2)
		hold := make(chan struct{})
		m.Serve(func(context.Context, int) (string, error) { <-hold; return "", nil })
		for n := range 3 {
			go m.Call(t.Context(), n)
			synctest.Wait()
		}
		require.Equal(t, []int{0, 1}, m.Requests())
		require.Equal(t, 3, m.Calls())
		require.Equal(t, 2, m.InFlight())
		close(hold)
		synctest.Wait()
		require.Zero(t, m.InFlight())
		require.Equal(t, 2, m.MaxInFlight())
	})
}

// Without a function, a call waits until its context ends.
func TestMockCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMock[int, string]()
		m.Allow(Unlimited)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := m.Call(ctx, 1)
			gone <- err
		}()
		synctest.Wait()
		cancel(errCancel)
		err := <-gone
		require.ErrorIs(t, err, errCancel)
		require.NotErrorIs(t, err, layer.ErrNotReady, "it was admitted")
		require.Zero(t, m.InFlight())
	})
}

func TestMockClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMock[int, string]()
		m.Allow(Unlimited)
		held, answered := make(chan string), make(chan string, 1)
		m.Serve(func(context.Context, int) (string, error) { return <-held, nil })
		go func() {
			rsp, _ := m.Call(t.Context(), 1)
			answered <- rsp
		}()
		synctest.Wait()
		m.Close()
		m.Close()
		m.Allow(1)
		require.ErrorIs(t, m.Ready(t.Context()), layer.ErrClosed)
		_, err := m.Call(t.Context(), 2)
		require.ErrorIs(t, err, layer.ErrClosed)
		require.ErrorIs(t, err, layer.ErrNotReady)

		held <- "in flight"
		require.Equal(t, "in flight", <-answered)
	})
}

func TestMockPanics(t *testing.T) {
	m := NewMock[int, string]()
	m.Allow(Unlimited)
	m.Serve(func(context.Context, int) (string, error) { panic(errPlanned) })
	assert.PanicsWithValue(t, errPlanned, func() { m.Call(t.Context(), 1) })
	m.Serve(func(context.Context, int) (string, error) { runtime.Goexit(); return "", nil })
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Call(t.Context(), 1)
	}()
	<-done
	require.Zero(t, m.InFlight())
}

// A mock made outside a bubble blocks durably inside one.
func TestMockOutsideBubble(t *testing.T) {
	m := NewMock[int, string]()
	synctest.Test(t, func(t *testing.T) {
		go func() {
			time.Sleep(time.Hour)
			m.Allow(1)
		}()
		began := time.Now()
		require.NoError(t, m.Ready(t.Context()))
		require.Equal(t, time.Hour, time.Since(began))
	})
}

// TestMockModel compares random operations on a Mock with a model.
func TestMockModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewMock[int, string]()
		m.Serve(double)
		allowed, closed, calls, admitted := 0, false, 0, 0
		done, cancel := context.WithCancelCause(context.Background())
		cancel(errCancel)
		t.Repeat(map[string]func(*rapid.T){
			"allow": func(t *rapid.T) {
				n := rapid.IntRange(-1, 3).Draw(t, "n")
				m.Allow(n)
				allowed += max(n, 0)
			},
			"deny": func(*rapid.T) { m.Deny(); allowed = 0 },
			"close": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "close") == 0 {
					m.Close()
					closed = true
				}
			},
			"call": func(t *rapid.T) {
				calls++
				_, err := m.Call(context.Background(), calls)
				switch {
				case closed:
					require.ErrorIs(t, err, layer.ErrClosed)
				case allowed == 0:
					require.ErrorIs(t, err, layer.ErrNotReady)
				default:
					require.NoError(t, err)
					allowed--
					admitted++
				}
			},
			"call done": func(t *rapid.T) {
				calls++
				_, err := m.Call(done, calls)
				require.ErrorIs(t, err, layer.ErrNotReady)
				require.ErrorIs(t, err, errCancel)
			},
			"": func(t *rapid.T) {
				err := layer.Poll(m)
				require.Equal(t, closed, errors.Is(err, layer.ErrClosed))
				require.Equal(t, closed || allowed == 0, err != nil)
				require.Equal(t, calls, m.Calls())
				require.Len(t, m.Requests(), admitted)
				require.Zero(t, m.InFlight())
			},
		})
	})
}
