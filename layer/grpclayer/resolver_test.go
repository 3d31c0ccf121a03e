package grpclayer

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/serviceconfig"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/resolve"
)

// heard is the ClientConn of a resolver.
type heard struct{ items chan any }

func (h heard) UpdateState(s resolver.State) error                   { h.items <- s; return nil }
func (h heard) ReportError(err error)                                { h.items <- err }
func (h heard) NewAddress([]resolver.Address)                        {}
func (h heard) ParseServiceConfig(string) *serviceconfig.ParseResult { return nil }

func TestResolverUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		b := NewResolver("ours", src)
		assert.Equal(t, "ours", b.Scheme())
		h := heard{make(chan any, 16)}
		r, err := b.Build(resolver.Target{}, h, resolver.BuildOptions{})
		require.NoError(t, err)
		defer r.Close()
		r.ResolveNow(resolver.ResolveNowOptions{})

		id := resolve.ID{Addr: netip.MustParseAddrPort(a1), ServerName: "web"}
		e := resolve.Endpoint{ID: id, Weight: 7, Labels: map[string]string{"zone": "a"}}
		src <- news{update: resolve.Update{Kind: resolve.Add, Endpoints: []resolve.Endpoint{e}}}
		state := (<-h.items).(resolver.State)
		require.Len(t, state.Endpoints, 1)
		require.Len(t, state.Addresses, 1)
		addr := state.Endpoints[0].Addresses[0]
		assert.Equal(t, a1, addr.Addr)
		assert.Equal(t, "web", addr.ServerName)
		assert.True(t, addr.Equal(state.Addresses[0]))
		got, ok := EndpointID(addr.Attributes)
		assert.True(t, ok)
		assert.Equal(t, id, got)
		found := endpointsOf(state)
		require.Len(t, found, 1)
		assert.True(t, e.Equal(found[0].Endpoint))
		assert.Equal(t, resolve.StateExists, targetState(state, 1))

		// The same update changes nothing.
		src <- news{update: resolve.Update{Kind: resolve.Add, Endpoints: []resolve.Endpoint{e}}}
		synctest.Wait()
		assert.Empty(t, h.items)

		// Another label changes the endpoint, and not the address.
		e.Labels = map[string]string{"zone": "b"}
		src <- news{update: resolve.Update{Kind: resolve.Add, Endpoints: []resolve.Endpoint{e}}}
		next := (<-h.items).(resolver.State)
		assert.True(t, next.Addresses[0].Equal(state.Addresses[0]))
		assert.False(t, next.Endpoints[0].Attributes.Equal(state.Endpoints[0].Attributes))

		// After an error the state is sent again, which ends the error.
		lost := errors.New("lost")
		src <- news{err: lost}
		require.ErrorIs(t, (<-h.items).(error), lost)
		src <- news{update: resolve.Update{Kind: resolve.Add, Endpoints: []resolve.Endpoint{e}}}
		assert.Len(t, (<-h.items).(resolver.State).Addresses, 1)

		src <- news{update: resolve.Update{Kind: resolve.DoesNotExist}}
		assert.Equal(t, resolve.StateDoesNotExist, targetState((<-h.items).(resolver.State), 0))
	})
}

func TestResolverClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		h := heard{make(chan any, 16)}
		r, err := NewResolver("ours", src).Build(resolver.Target{}, h, resolver.BuildOptions{})
		require.NoError(t, err)
		synctest.Wait()
		r.Close()
		synctest.Wait() // a goroutine that leaks ends the bubble with a panic
		src <- replace(a1)
		assert.Empty(t, h.items)
	})
}

// Our resolver works with gRPC's own balancers, with its errors.
func TestResolverWithRoundRobin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		s1, s2 := serve(t, &n, a1), serve(t, &n, a2)
		src := newSource(news{err: errors.New("not yet")})
		cc, err := grpc.NewClient("ours:///web", grpc.WithResolvers(NewResolver("ours", src)),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`), onNetwork(&n),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer cc.Close()
		_, err = call(t.Context(), cc)
		require.Equal(t, codes.Unavailable, status.Code(err))
		assert.Contains(t, err.Error(), "not yet")

		src <- replace(a1, a2)
		_, err = call(t.Context(), cc, waitForReady)
		require.NoError(t, err)
		synctest.Wait()
		for range 20 {
			_, err := call(t.Context(), cc)
			require.NoError(t, err)
		}
		assert.InDelta(t, s1.calls.Load(), s2.calls.Load(), 1)
	})
}

func onNetwork(n *layertest.Network) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return n.DialContext(ctx, "tcp", addr)
	})
}

// Our balancer works with gRPC's own resolvers. gRPC dials addresses other than IP
// addresses.
func TestBalancerOtherResolver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		s1, s2 := serve(t, &n, a1), serve(t, &n, a2)
		r := manual.NewBuilderWithScheme("theirs")
		r.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: "web:80"}}})
		cc, err := grpc.NewClient("theirs:///web", grpc.WithResolvers(r), onNetwork(&n),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"`+name+`":{}}]}`),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer cc.Close()
		_, err = call(t.Context(), cc)
		require.Equal(t, codes.Unavailable, status.Code(err))
		assert.Contains(t, err.Error(), "lookup web: no such host")

		r.UpdateState(resolver.State{Addresses: []resolver.Address{
			{Addr: a1}, {Addr: a2, Attributes: attributes.New("k", "v")}, {Addr: a1}, {Addr: "web:80"},
		}})
		synctest.Wait()
		for range 50 {
			_, err := call(t.Context(), cc)
			require.NoError(t, err)
		}
		assert.Positive(t, s1.calls.Load())
		assert.Positive(t, s2.calls.Load())

		r.UpdateState(resolver.State{})
		synctest.Wait()
		_, err = call(t.Context(), cc)
		require.Equal(t, codes.Unavailable, status.Code(err))
		time.Sleep(time.Minute)
	})
}
