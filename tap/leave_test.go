package tap

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// A client of Watch that disconnects at any time leaves no watcher, no goroutine, and no
// cost for requests.
func TestWatcherDisconnects(t *testing.T) {
	leave := map[string]func(p *process, cancel func()){
		"cancel":     func(_ *process, cancel func()) { cancel() },
		"connection": func(p *process, _ func()) { _ = p.conn.Close() },
	}
	flooded := func(svc layer.Service[*bodied, *reply], reg *Registry) *reply {
		for reg.Describe().State.Get("dropped").(uint64) < 5000 {
			rsp, err := svc.Call(context.Background(), saying("long"))
			if err != nil {
				return nil
			}
			_ = rsp.Body.Close()
		}
		return nil
	}
	inFlight := func(svc layer.Service[*bodied, *reply], _ *Registry) *reply {
		rsp, _ := svc.Call(context.Background(), saying("a request with a body"))
		_, _ = io.ReadFull(rsp.Body, make([]byte, 2))
		return rsp
	}
	ended := func(svc layer.Service[*bodied, *reply], _ *Registry) *reply {
		rsp, _ := svc.Call(context.Background(), saying("a request with a body"))
		_ = rsp.Body.Close()
		return nil
	}
	states := map[string]struct {
		req  *tappb.WatchRequest
		then func(svc layer.Service[*bodied, *reply], reg *Registry) *reply
	}{
		"no event yet":                       {&tappb.WatchRequest{}, nil},
		"no event yet, for a time":           {&tappb.WatchRequest{Duration: durationpb.New(1 << 40)}, nil},
		"between requests":                   {&tappb.WatchRequest{}, ended},
		"a request in flight":                {&tappb.WatchRequest{Fields: true}, inFlight},
		"a request in flight, for a time":    {&tappb.WatchRequest{Duration: durationpb.New(1 << 40)}, inFlight},
		"bodies and explanation in flight":   {&tappb.WatchRequest{BodyBytes: 9, Explain: true}, inFlight},
		"a request kept back":                {&tappb.WatchRequest{Response: &tappb.ResponseMatch{Failures: true}}, inFlight},
		"a request let go":                   {&tappb.WatchRequest{Response: &tappb.ResponseMatch{Failures: true}}, ended},
		"bodies kept back":                   {&tappb.WatchRequest{BodyBytes: 9, Response: &tappb.ResponseMatch{Failures: true}}, inFlight},
		"at the limit, a request in flight":  {&tappb.WatchRequest{Limit: 1}, inFlight},
		"not reading":                        {&tappb.WatchRequest{}, flooded},
		"not reading, with all there is":     {&tappb.WatchRequest{Fields: true, Explain: true, BodyBytes: 100, Response: &tappb.ResponseMatch{}}, flooded},
		"not reading, and no request for it": {&tappb.WatchRequest{Sample: 1e-18}, ended},
	}
	for how, leave := range leave {
		for name, state := range states {
			t.Run(how+"/"+name, func(t *testing.T) {
				reg := NewRegistry(WithBodies(100, asItIs))
				p := listen(t, NewServer(reg), nil)
				a := newTee()
				svc := Explain[*bodied, *reply](reg)(Layer[*bodied, *reply](reg, a)(layer.Func[*bodied, *reply](talkLong)))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				p.watch(ctx, t, state.req)
				var rsp *reply
				if state.then != nil {
					rsp = state.then(svc, reg)
				}
				leave(p, cancel)
				require.Error(t, <-p.ended)
				require.Nil(t, reg.active.Load())
				require.Empty(t, reg.Describe().Children)
				requireNobodyLooks(t, svc, a)
				if rsp != nil {
					rest, err := io.ReadAll(rsp.Body)
					require.NoError(t, err)
					require.Len(t, rest, longAnswer-2, "the request goes on")
				}
				requireNoReader(t)
			})
		}
	}
}

const longAnswer = 20 << 10

func talkLong(_ context.Context, b *bodied) (*reply, error) {
	_, err := io.Copy(io.Discard, b.Body)
	return &reply{status: 200, Body: io.NopCloser(strings.NewReader(strings.Repeat("a", longAnswer)))}, err
}

// requireNobodyLooks is for when all have left: a request is handed on as it
// came.
func requireNobodyLooks(t *testing.T, svc layer.Service[*bodied, *reply], a withBodies) {
	t.Helper()
	looked := a.Accessor.(bodiedAccess).looks
	looks := looked.request() + looked.status.Load() + looked.response.Load()
	ctx := mute{context.Background(), t}
	rsp, err := svc.Call(ctx, saying("x"))
	require.NoError(t, err)
	require.NotEqual(t, "*tap.readAlong", fmt.Sprintf("%T", rsp.Body))
	require.Equal(t, looks, looked.request()+looked.status.Load()+looked.response.Load())
}

func requireNoReader(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	require.NotContains(t, string(stacks), "tap.(*reader)")
}
