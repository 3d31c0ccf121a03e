package discover_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// named is an endpoint with a TLS server name, which is part of its ID.
func named(i int, name string) resolve.Endpoint {
	e := at(i)
	e.ServerName = name
	return e
}

// An endpoint is replaced at once if its ID changes, also by a service that is not ready.
// Its responses in flight continue. An ID that changes back gets a new service.
func TestEndpointsIDChange(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := &consumer{}
		go c.run(discover.Endpoints(ctx, src, "web", made.Make))
		src.update(replace(named(1, "a"), at(2)))
		synctest.Wait()
		require.Equal(t, []string{"+1 +2 exists"}, c.take())
		old := c.at(1)
		rsp, err := old.Service.Call(t.Context(), "")
		require.NoError(t, err)

		made.shut.Store(true)
		src.update(add(named(1, "b")))
		synctest.Wait()
		require.Equal(t, []string{"+1 -1 exists"}, c.take())
		require.Equal(t, "b", c.at(1).ServerName)
		require.ErrorIs(t, layer.Poll(old.Service), layer.ErrClosed)
		require.ErrorIs(t, layer.Poll(c.at(1).Service), layer.ErrNotReady)
		services := made.of(1)
		require.Len(t, services, 2)
		require.NoError(t, services[0].ctx.Err(), "a body is open")
		require.NoError(t, rsp.Body.Close())
		require.Error(t, services[0].ctx.Err())
		require.NoError(t, services[1].ctx.Err())

		src.update(add(named(1, "a")))
		synctest.Wait()
		require.Equal(t, []string{"+1 -1 exists"}, c.take())
		require.Len(t, made.of(1), 3)
		require.Error(t, services[1].ctx.Err())
		require.Empty(t, c.doubled)
	})
}

// An ID that changes together with the removal of other endpoints is one change.
func TestEndpointsIDChangeInReplace(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := &consumer{}
		go c.run(discover.Endpoints(ctx, src, "web", made.Make))
		src.update(replace(named(1, "a"), at(2)))
		synctest.Wait()
		c.take()
		src.update(replace(named(1, "b"), at(3)))
		synctest.Wait()
		require.Equal(t, []string{"+1 +3 -1 -2 exists"}, c.take())
		require.Equal(t, "b", c.at(1).ServerName)
		require.Empty(t, c.doubled)
	})
}
