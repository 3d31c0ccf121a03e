package grpclayer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/resolve"
)

// What WithBalance sets reaches the balancer.
func TestWithBalance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, opts := range map[string][]Option{
			"ewma":          {WithBalance(balance.Config{})},
			"least_request": {WithBalance(balance.Config{}), WithBalance(balance.Config{Policy: balance.Policy{Cost: balance.LeastRequest}})},
		} {
			var seen layer.Describer
			var n layertest.Network
			cc := dial(t, &n, newSource(replace(a1)), append(opts, WithOnBalancer(func(d layer.Describer) { seen = d }))...)
			cc.Connect()
			synctest.Wait()
			require.NotNil(t, seen)
			assert.Equal(t, want, seen.Describe().State.Get("cost"))
		}
	})
}

// A client has the options of the balancer and of the resolver, also if the resolver fails first.
// The options of the resolver take precedence.
func TestOptionsOfBalancerAndResolver(t *testing.T) {
	cost := func(c balance.Cost) Option { return WithBalance(balance.Config{Policy: balance.Policy{Cost: c}}) }
	for name, tt := range map[string]struct {
		balancer, resolver []Option
		want               string
	}{
		"balancer": {[]Option{cost(balance.LeastRequest)}, nil, "least_request"},
		"resolver": {nil, []Option{cost(balance.LeastRequest)}, "least_request"},
		"both":     {[]Option{cost(balance.LeastRequest)}, []Option{cost(balance.EWMA)}, "ewma"},
	} {
		for _, first := range []news{replace(a1), {err: errPlain}} {
			t.Run(fmt.Sprint(name, " ", first.err), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var seen layer.Describer
					opts := append(tt.balancer, WithOnBalancer(func(d layer.Describer) { seen = d }))
					b := NewBalancer(name, opts...).Build(newFake(), balancer.BuildOptions{})
					defer b.Close()
					r, err := NewResolver("ours", newSource(first), tt.resolver...).Build(resolver.Target{}, &feed{to: b}, resolver.BuildOptions{})
					require.NoError(t, err)
					defer r.Close()
					synctest.Wait()
					require.NotNil(t, seen)
					assert.Equal(t, tt.want, seen.Describe().State.Get("cost"))
				})
			})
		}
	}
}

// feed passes the results of a resolver to a balancer.
type feed struct {
	resolver.ClientConn
	to balancer.Balancer
}

func (f *feed) UpdateState(s resolver.State) error {
	return f.to.UpdateClientConnState(balancer.ClientConnState{ResolverState: s})
}

func (f *feed) ReportError(err error) { f.to.ResolverError(err) }

// Messages sent by a goroutine of a handler that has returned are not observed.
func TestServerStreamObservers(t *testing.T) {
	var begun, messages int
	var late grpc.ServerStream
	s := NewServer(func(next Service) Service {
		return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
			GRPC{}.OnResponseStart(ctx, c, observing{func(*Reply) { begun++ }, func() { messages++ }})
			return next.Call(ctx, c)
		})
	})
	for name, sends := range map[string]int{"none before": 0, "two before": 2} {
		t.Run(name, func(t *testing.T) {
			begun, messages = 0, 0
			err := s.Stream(nil, sink{ctx: t.Context()}, &grpc.StreamServerInfo{IsServerStream: true},
				func(_ any, ss grpc.ServerStream) error {
					late = ss
					for range sends {
						require.NoError(t, ss.SendMsg(new(outResponse)))
					}
					return nil
				})
			require.NoError(t, err)
			require.Equal(t, []int{min(sends, 1), sends}, []int{begun, messages})
			require.NoError(t, late.SendHeader(metadata.Pairs("k", "late")))
			require.NoError(t, late.SendMsg(new(outResponse)))
			assert.Equal(t, []int{min(sends, 1), sends}, []int{begun, messages})
		})
	}
}

// sink is a server's stream that accepts all messages.
type sink struct {
	grpc.ServerStream
	ctx context.Context // that of the stream
}

func (s sink) Context() context.Context   { return s.ctx }
func (sink) SendHeader(metadata.MD) error { return nil }
func (sink) SendMsg(any) error            { return nil }

// An error before the first SRV records means that SRV records do not exist, also after an
// empty response. An error after records keeps them.
func TestControlSRVErrors(t *testing.T) {
	away := news{err: errors.New("away")}
	none := news{update: resolve.Update{Kind: resolve.DoesNotExist}}
	empty := news{update: resolve.Update{Kind: resolve.Empty}}
	for name, tt := range map[string]struct{ items, want []news }{
		"at first":           {[]news{away, replace(a1)}, []news{none, replace(a1)}},
		"after none":         {[]news{none, away}, []news{none, none}},
		"after an empty one": {[]news{empty, away}, []news{none, none}},
		"after records":      {[]news{replace(a1), away}, []news{replace(a1), away}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []news
			r := services(resolve.Func(func(_ context.Context, host string) iter.Seq2[resolve.Update, error] {
				assert.Equal(t, "dst.test", host)
				return func(yield func(resolve.Update, error) bool) {
					for _, n := range tt.items {
						if !yield(n.update, n.err) {
							return
						}
					}
				}
			}))
			for u, err := range r.Resolve(t.Context(), "dst.test:80") {
				got = append(got, news{u, err})
			}
			assert.Equal(t, tt.want, got)
		})
	}
}
