package grpclayer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	estats "google.golang.org/grpc/experimental/stats"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// fakeConn is a fake of gRPC for balancers.
type fakeConn struct {
	balancer.ClientConn
	states  chan balancer.State
	dialled chan *fakeSub
	subs    []*fakeSub
	resolve int // calls of ResolveNow
}

func (f *fakeConn) NewSubConn(_ []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	sub := &fakeSub{conn: f, hear: o.StateListener}
	f.subs = append(f.subs, sub)
	return sub, nil
}

func (f *fakeConn) UpdateState(s balancer.State)            { f.states <- s }
func (f *fakeConn) ResolveNow(resolver.ResolveNowOptions)   { f.resolve++ }
func (f *fakeConn) MetricsRecorder() estats.MetricsRecorder { return unrecorded{} }
func (f *fakeConn) Target() string                          { return "" }

// ready makes connections until one can be picked.
func (f *fakeConn) ready(info balancer.PickInfo) balancer.Picker {
	for {
		select {
		case sub := <-f.dialled:
			sub.hear(balancer.SubConnState{ConnectivityState: connectivity.Connecting})
			sub.hear(balancer.SubConnState{ConnectivityState: connectivity.Ready})
		case s := <-f.states:
			if r, err := s.Picker.Pick(info); err == nil {
				finish(r)
				if len(f.dialled) == 0 {
					return s.Picker
				}
			}
		}
	}
}

type fakeSub struct {
	balancer.SubConn
	conn *fakeConn
	hear func(balancer.SubConnState)
	shut int
}

func (f *fakeSub) Connect()  { f.conn.dialled <- f }
func (f *fakeSub) Shutdown() { f.shut++ }
func (f *fakeSub) RegisterHealthListener(hear func(balancer.SubConnState)) {
	go hear(balancer.SubConnState{ConnectivityState: connectivity.Ready})
}

type unrecorded struct{ estats.MetricsRecorder }

func (unrecorded) RecordInt64Count(*estats.Int64CountHandle, int64, ...string)       {}
func (unrecorded) RecordFloat64Count(*estats.Float64CountHandle, float64, ...string) {}
func (unrecorded) RecordInt64Histo(*estats.Int64HistoHandle, int64, ...string)       {}
func (unrecorded) RecordFloat64Histo(*estats.Float64HistoHandle, float64, ...string) {}
func (unrecorded) RecordInt64Gauge(*estats.Int64GaugeHandle, int64, ...string)       {}

func newFake() *fakeConn {
	return &fakeConn{states: make(chan balancer.State, 1000), dialled: make(chan *fakeSub, 1000)}
}

func addresses(addrs ...string) balancer.ClientConnState {
	var s resolver.State
	for _, a := range addrs {
		addr := []resolver.Address{{Addr: a}}
		s.Addresses = append(s.Addresses, addr...)
		s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: addr})
	}
	return balancer.ClientConnState{ResolverState: s}
}

// last returns the newest picker.
func (f *fakeConn) last() balancer.State {
	synctest.Wait()
	var s balancer.State
	for len(f.states) > 0 {
		s = <-f.states
	}
	return s
}

func TestBalancerKeepsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := NewBalancer(name).Build(f, balancer.BuildOptions{})
		require.NoError(t, b.UpdateClientConnState(addresses(a1, a2, a1)))
		require.Len(t, f.subs, 2, "an address that is named twice is one")
		f.ready(pick{Ctx: t.Context()})

		require.NoError(t, b.UpdateClientConnState(addresses(a2, a3)))
		require.Len(t, f.subs, 3)
		synctest.Wait()
		assert.Equal(t, 1, f.subs[0].shut)
		assert.Zero(t, f.subs[1].shut)

		require.Equal(t, balancer.ErrBadResolverState, b.UpdateClientConnState(addresses()), "resolve again")
		synctest.Wait()
		assert.Equal(t, 1, f.subs[1].shut)
		assert.Equal(t, 1, f.subs[2].shut)

		require.NoError(t, b.UpdateClientConnState(addresses(a1)))
		require.Len(t, f.subs, 4, "what went and came back is another")
		b.Close()
		assert.Equal(t, 1, f.subs[3].shut)
	})
}

// Calls for which no endpoint can be picked.
func TestPickWithoutEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := NewBalancer(name).Build(f, balancer.BuildOptions{})
		defer b.Close()
		require.NoError(t, b.UpdateClientConnState(addresses(a1)))
		sub := f.subs[0]
		a := &attempt{Context: t.Context()}
		info := pick{Ctx: a}

		_, err := f.last().Picker.Pick(info)
		require.Equal(t, balancer.ErrNoSubConnAvailable, err, "it is being connected for the first time")
		require.NotNil(t, a.rejection.Load())

		picker := f.ready(pick{Ctx: t.Context()})
		r, err := picker.Pick(info)
		require.NoError(t, err)
		assert.Nil(t, a.rejection.Load(), "it was not refused after all")
		r.Done(balancer.DoneInfo{})
		assert.False(t, a.sent.Load())
		r, err = picker.Pick(info)
		require.NoError(t, err)
		r.Done(balancer.DoneInfo{BytesSent: true})
		assert.True(t, a.sent.Load())

		sub.hear(balancer.SubConnState{ConnectivityState: connectivity.Idle})
		assert.Equal(t, 1, f.resolve)
		assert.Len(t, f.dialled, 1, "it is connected again at once")
		_, err = picker.Pick(info)
		require.Equal(t, balancer.ErrNoSubConnAvailable, err, "it is being connected again")
		assert.Equal(t, connectivity.Connecting, f.last().ConnectivityState)

		sub.hear(balancer.SubConnState{ConnectivityState: connectivity.TransientFailure, ConnectionError: errPlain})
		assert.Equal(t, 2, f.resolve)
		_, err = picker.Pick(info)
		require.ErrorContains(t, err, "connection failed: plain")
		_, isStatus := status.FromError(err)
		assert.False(t, isStatus, "a status would end calls that are to wait")
		sub.hear(balancer.SubConnState{ConnectivityState: connectivity.Idle})
		sub.hear(balancer.SubConnState{ConnectivityState: connectivity.Connecting})
		assert.Equal(t, connectivity.TransientFailure, f.last().ConnectivityState, "until it is connected it counts as failing")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = picker.Pick(pick{Ctx: ctx})
		require.Equal(t, balancer.ErrNoSubConnAvailable, err, "gRPC reports the cancellation")
	})
}

func TestBalancerFinalError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := NewBalancer(name).Build(f, balancer.BuildOptions{})
		defer b.Close()
		require.NoError(t, b.UpdateClientConnState(addresses(a1)))
		picker := f.ready(pick{Ctx: t.Context()})
		b.ResolverError(errors.Join(errPlain, resolve.ErrUnresolvable))
		synctest.Wait()
		assert.Equal(t, 1, f.subs[0].shut)
		_, err := picker.Pick(pick{Ctx: t.Context()})
		st, ok := status.FromError(err)
		require.True(t, ok, "a status ends calls that wait, too")
		assert.Equal(t, codes.Unavailable, st.Code())
	})
}

// No state is published before the first update. The error follows.
func TestBalancerPendingState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var seen layer.Describer
		b := NewBalancer(name).Build(f, balancer.BuildOptions{})
		defer b.Close()
		s := newSettings([]Option{WithOnBalancer(func(d layer.Describer) { seen = d })})
		pending := balancer.ClientConnState{ResolverState: stateOf(new(resolve.Set), s)}
		require.NoError(t, b.UpdateClientConnState(pending))
		synctest.Wait()
		assert.Empty(t, f.states)
		assert.NotNil(t, seen, "the options that came with the state are in force")
		b.ResolverError(errPlain)
		_, err := f.last().Picker.Pick(pick{Ctx: t.Context()})
		require.ErrorContains(t, err, "not resolved yet: plain")
	})
}
