package balance_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

func TestExplain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Zone: "a"})), servers(5)
		ss[3].open(false)
		ss[4].close()
		c := change{State: resolve.StateExists}
		for i, zone := range []string{"a", "a", "b", "a", "a"} {
			e := ss[i].labelled(map[string]string{"zone": zone})
			e.Weight = uint32(10_000 * (1 + i))
			c.Added = append(c.Added, e)
		}
		p.apply(c)
		synctest.Wait()
		ss[0].after(func() time.Duration { return 10 * time.Millisecond })
		ss[1].after(func() time.Duration { return 500 * time.Millisecond })
		p.load(t, 100, time.Second, ss, patient)

		ctx, why := layer.Explain(t.Context())
		require.NoError(t, p.send(ctx))
		picks := why.Choices()
		require.Len(t, picks, 1)
		require.Equal(t, ss[0].addr, picks[0].State.Get("chosen"))
		verdicts := make(map[any]any)
		for _, child := range picks[0].Children {
			verdicts[child.State.Get("addr")] = child.State.Get("result")
		}
		require.Equal(t, map[any]any{
			ss[0].addr: "chosen", ss[1].addr: "higher cost", ss[2].addr: "other zone", ss[3].addr: "unready", ss[4].addr: "closed",
		}, verdicts)
		require.Equal(t, true, picks[0].Children[2].State.Get("other_zone"))
		require.Contains(t, why.String(), "balance    target=web pick=cheapest of up to 24 in an aperture cost=ewma chosen=10.0.0.1:80\n")
		require.Contains(t, why.String(), "  endpoint   addr=10.0.0.5:80 result=closed reason=server: closed: shut\n")
		text, err := json.Marshal(why)
		require.NoError(t, err)
		require.Contains(t, string(text), `"result":"chosen"`)
	})
}

// Each attempt is a pick, and examines no endpoint that was tried.
func TestExplainRetries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(2)
		p.add(ss...)
		ctx, why := layer.Explain(layer.WithAttempts(t.Context(), new(layer.Attempts)))
		require.NoError(t, p.send(ctx))
		require.NoError(t, p.send(ctx))
		require.NoError(t, p.send(ctx))
		picks := why.Choices()
		require.Len(t, picks, 3)
		assert.NotEqual(t, picks[0].State.Get("chosen"), picks[1].State.Get("chosen"))
		assert.Len(t, picks[1].Children, 2)
		assert.Contains(t, picks[1].String(), "result=previous attempt")
	})
}

func TestExplainRejection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		ss[0].open(false)
		p.add(ss...)
		ctx, why := layer.Explain(t.Context())
		require.ErrorIs(t, p.send(ctx), layer.ErrNotReady)
		require.Nil(t, why.Choices()[0].State.Get("chosen"))
		require.Contains(t, why.String(), "result=unready reason=")
	})
}

func TestSnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(2)
		ss[1].open(false)
		p.add(ss...)
		require.NoError(t, p.send(t.Context()))
		time.Sleep(time.Minute)
		s := p.Snapshot()
		require.Len(t, s, 2)
		require.Equal(t, ss[0].addr, s[0].ID.Addr)
		require.Equal(t, []any{"ready", true, uint64(0), uint64(1), 1.0}, []any{s[0].State, s[0].Known, s[0].InFlight, s[0].Picks, s[0].Weight})
		require.Equal(t, []any{"unready", false, uint64(0)}, []any{s[1].State, s[1].Known, s[1].Picks})
		require.ErrorIs(t, s[1].Reason, layer.ErrNotReady)
		require.InDelta(t, time.Minute, s[0].Age, float64(10*time.Millisecond))
	})
}
