package balance_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

func TestDescribe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(3)
		ss[1].open(false)
		ss[2].close()
		p.apply(change{State: resolve.StateExists, Added: []*endpoint{
			ss[2].endpoint(), ss[1].endpoint(), ss[0].labelled(map[string]string{"zone": "b", "pod": "web-1"}),
		}})
		synctest.Wait()
		_, err := p.Call(t.Context(), "")
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		d := layer.Describe(p.balancer)
		require.Equal(t, `balance    target=web state=exists pick=cheapest of up to 24 in an aperture cost=ewma endpoints=3 ready=1 picks=1
  endpoint   addr=10.0.0.1:80 state=ready ewma=30ms known=false in_flight=1 picks=1 labels=map[pod:web-1 zone:b]
  balance_test.server
  endpoint   addr=10.0.0.2:80 state=unready ewma=30ms known=false in_flight=0 picks=0 reason=not ready
  balance_test.server
  endpoint   addr=10.0.0.3:80 state=closed ewma=30ms known=false in_flight=0 picks=0 reason=server: closed: shut
  balance_test.server
`, d.String())

		text, err := json.Marshal(d)
		require.NoError(t, err)
		var read struct {
			State    map[string]any
			Children []struct{ State map[string]any }
		}
		require.NoError(t, json.Unmarshal(text, &read))
		require.Equal(t, "exists", read.State["state"])
		require.Equal(t, "10.0.0.1:80", read.Children[0].State["addr"])
		require.Equal(t, map[string]any{"zone": "b", "pod": "web-1"}, read.Children[0].State["labels"])
	})
}
