package tap

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/tappb"
)

// With any watchers, bodies do not change and nothing leaks, for net/http over
// HTTP/1 and HTTP/2, with callers that cancel, that do not read, and that read
// after Close.
func TestHTTPStressWatchersAndBodies(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!h2)
		protocols.SetUnencryptedHTTP2(h2)
		upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.Header().Set("Trailer", "Grpc-Status")
			_, _ = io.Copy(w, r.Body)
			w.Header().Set("Grpc-Status", "0")
		}))
		upstream.Config.Protocols = protocols
		upstream.Start()
		transport := &http.Transport{Protocols: protocols}
		reg := NewRegistry(WithCapacity(8, 40), WithBodies(1000, func(_ string, b []byte) []byte {
			if len(b)%7 == 0 {
				panic("hook")
			}
			return b
		}))
		stack := Explain[*http.Request, *http.Response](reg)(Layer(reg, httplayer.Accessor{})(
			layer.Func[*http.Request, *http.Response](func(ctx context.Context, r *http.Request) (*http.Response, error) {
				layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{Name: "below"})
				return transport.RoundTrip(r)
			})))
		stay := []*watcher{
			watchOn(t, reg, &tappb.WatchRequest{Fields: true, Explain: true, BodyBytes: 1000}),
			watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 9, Response: &tappb.ResponseMatch{Failures: true}}),
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					exchangeOne(t, upstream.URL, stack)
				}
			})
		}
		for range 8 {
			all.Go(func() {
				for ctx.Err() == nil {
					watchAWhile(ctx, reg)
				}
			})
		}
		all.Wait()
		cancel()
		for _, w := range stay {
			require.Eventually(t, func() bool {
				readAll(w)
				b := w.buf.Load()
				return w.inFlight.Load() == 0 && b.held.Load() == 0 && b.room.Load() == maxText
			}, 20*time.Second, time.Millisecond, "all have left, and all room is back")
			reg.close(w)
		}
		require.Nil(t, reg.active.Load())
		require.EqualValues(t, 0, reg.Describe().State.Get("watching"))
		transport.CloseIdleConnections()
		upstream.Close()
	}
}

func exchangeOne(t *testing.T, url string, stack layer.Service[*http.Request, *http.Response]) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	said := bytes.Repeat([]byte("0123456789"), rand.IntN(300))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/?secret", bytes.NewReader(said))
	if !assert.NoError(t, err) {
		return
	}
	rsp, err := stack.Call(ctx, r)
	if !assert.NoError(t, err) {
		return
	}
	switch rand.IntN(4) {
	case 0: // leaves
		cancel()
	case 1: // has enough, and reads on
		_, _ = io.ReadFull(rsp.Body, make([]byte, 5))
		_ = rsp.Body.Close()
		_, _ = rsp.Body.Read(make([]byte, 5))
	default:
		got, err := io.ReadAll(rsp.Body)
		assert.NoError(t, err)
		assert.True(t, bytes.Equal(said, got))
		assert.Equal(t, "0", rsp.Trailer.Get("Grpc-Status"))
	}
	_ = rsp.Body.Close()
}

func watchAWhile(ctx context.Context, reg *Registry) {
	if rand.IntN(4) == 0 {
		c, err := reg.count(&tappb.TopRequest{ByRoute: rand.IntN(2) == 0})
		if err == nil {
			time.Sleep(time.Millisecond)
			c.rows.answer(10)
			reg.detach(c)
		}
		return
	}
	req := &tappb.WatchRequest{
		Fields: rand.IntN(2) == 0, Explain: rand.IntN(2) == 0, BodyBytes: rand.Uint32N(1500),
		Limit: rand.Uint64N(20), Duration: durationpb.New(time.Duration(1 + rand.IntN(int(10*time.Millisecond)))),
	}
	if rand.IntN(2) == 0 {
		req.Response = &tappb.ResponseMatch{Failures: rand.IntN(2) == 0}
	}
	left := rand.IntN(30)
	for _, err := range reg.Watch(ctx, req) {
		if err != nil {
			return // there are too many, or it is over
		}
		if left--; left < 0 {
			return
		}
	}
}
