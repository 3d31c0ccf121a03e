package profiles_test

import (
	"context"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

type sourceFunc func(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error]

func (f sourceFunc) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return f(ctx, target)
}

type panicking struct{ service }

func (panicking) Ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return layer.ErrNotReady // a poll, on the goroutine of the caller
	}
	panic("ready")
}

// badHandler panics at each record.
type badHandler struct{ slog.Handler }

func (badHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h badHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (badHandler) Handle(context.Context, slog.Record) error { panic("log") }

// A callback that panics on the Router's goroutines ends neither the process nor
// the watch: the part of the profile that it was called for is left out.
func TestRouterContainsPanics(t *testing.T) {
	one := profiles.Route{Name: "one", Match: profiles.Path("/one")}
	p := &profiles.Profile{Name: "web", Routes: []profiles.Route{one}}
	onUpdate := profiles.Config{OnUpdate: func(*profiles.Profile) { panic("on update") }}
	for name, tt := range map[string]struct {
		c   profiles.Config
		opt option
	}{
		"per route": {opt: profiles.WithPerRoute(func(profiles.Route, service) service { panic("per route") })},
		"default":   {opt: profiles.WithDefaultRoute(func(*profiles.Profile, service) service { panic("default") })},
		"on update": {c: onUpdate},
	} {
		t.Run(name, func(t *testing.T) {
			var bs backends
			r := routerWith(t, tt.c, p, &bs, tt.opt)
			require.Eventually(t, func() bool { return r.Profile() == p }, 10*time.Second, time.Millisecond)
			require.Equal(t, 200, send(t, r, http.MethodGet, "/one").status)
		})
	}
	t.Run("source", func(t *testing.T) {
		var bs backends
		source := sourceFunc(func(context.Context, string) iter.Seq2[*profiles.Profile, error] {
			return func(yield func(*profiles.Profile, error) bool) {
				yield(p, nil)
				panic("source")
			}
		})
		r := profiles.New(t.Context(), profiles.Config{Target: target, Source: source}, access{}, bs.mk)
		require.Eventually(t, func() bool {
			return strings.Contains(layer.Describe[request, *reply](r).String(), "panic at panic_test.go")
		}, 10*time.Second, time.Millisecond)
		require.Equal(t, p, r.Profile(), "the last profile stays")
		require.Equal(t, 200, send(t, r, http.MethodGet, "/one").status)
	})
	t.Run("log", func(t *testing.T) {
		var bs backends
		source := sourceFunc(func(context.Context, string) iter.Seq2[*profiles.Profile, error] {
			return func(yield func(*profiles.Profile, error) bool) { yield(p, nil) }
		})
		config := profiles.Config{Target: target, Source: source, Log: slog.New(badHandler{slog.DiscardHandler})}
		r := profiles.New(t.Context(), config, access{}, bs.mk)
		require.Eventually(t, func() bool { return r.Profile() == p }, 10*time.Second, time.Millisecond)
		require.Equal(t, 200, send(t, r, http.MethodGet, "/one").status)
	})
	t.Run("make", func(t *testing.T) {
		source := newScript()
		r := profiles.New(t.Context(), profiles.Config{Target: target, Source: source}, access{}, func(string) service { panic("make") })
		source.send(p, nil)
		_, err := r.Call(t.Context(), request{method: http.MethodGet, path: "/one"})
		require.ErrorContains(t, err, "panic at panic_test.go")
	})
	t.Run("backend", func(t *testing.T) {
		var bs backends
		own := ofPolicy(profiles.Route{Backends: []profiles.Backend{weighted("a:80", 1)}})
		own.Routes[0].Match = profiles.PathPrefix("/own")
		own.Routes = append(own.Routes, profiles.Route{Match: profiles.All{}})
		r := routerOf(t, own, &bs, profiles.WithBackends(func(context.Context, *profiles.Backend) service { panic("backend") }))
		_, err := r.Call(t.Context(), request{path: "/own"})
		require.ErrorContains(t, err, "panic at panic_test.go", "no less specific route gets the request")
		require.NotErrorIs(t, err, layer.ErrNotReady, "the backend fails its share")
	})
	t.Run("ready", func(t *testing.T) {
		source := newScript()
		config := profiles.Config{Target: target, Source: source}
		r := profiles.New(t.Context(), config, access{}, func(string) service { return panicking{} })
		source.send(p, nil)
		require.ErrorContains(t, r.Ready(t.Context()), "panic at panic_test.go")
	})
}

// The Router serves with the rest of the profile for any numbers from a controller.
func TestRouterExtremeProfiles(t *testing.T) {
	durations := rapid.Map(rapid.SampledFrom([]int64{
		0, 1, -1, math.MaxInt64, math.MinInt64, int64(time.Second), int64(time.Hour),
	}), func(n int64) time.Duration { return time.Duration(n) })
	ints := rapid.SampledFrom([]int{0, 1, -1, 99, 100, math.MaxInt, math.MinInt})
	fractions := rapid.SampledFrom([]float64{0, 0.5, 1, -1, 2, math.NaN(), math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64, math.MaxFloat64})
	statuses := rapid.SampledFrom([]int{0, 100, 200, 301, 302, 500, 503, 599, 600, -1})
	rapid.Check(t, func(t *rapid.T) {
		route := profiles.Route{
			Name: "r", Match: profiles.Path("/.*"),
			Timeout: durations.Draw(t, "timeout"), AttemptTimeout: durations.Draw(t, "attempt timeout"),
			Retry: &profiles.Retry{
				Max: ints.Draw(t, "max retries"), WithoutBudget: rapid.Bool().Draw(t, "without budget"),
				MaxBodyBytes: int64(ints.Draw(t, "kept body")),
			},
			Hedge: durations.Draw(t, "hedge"), Limit: ints.Draw(t, "limit"),
			Rate: profiles.Rate{PerSecond: fractions.Draw(t, "rate"), Burst: ints.Draw(t, "burst")},
			Faults: []profiles.Fault{{
				Fraction: fractions.Draw(t, "fault"), Delay: durations.Draw(t, "delay"), Jitter: durations.Draw(t, "jitter"),
				Status: statuses.Draw(t, "status"), TTL: durations.Draw(t, "ttl"),
			}},
			Mirrors: []profiles.Mirror{{
				Authority: "shadow:80", Fraction: fractions.Draw(t, "mirror"),
				MaxBodyBytes: int64(ints.Draw(t, "body")), MaxInFlight: ints.Draw(t, "in flight"),
			}},
		}
		p := &profiles.Profile{Routes: []profiles.Route{route}, RetryBudget: &profiles.RetryBudget{
			Ratio: fractions.Draw(t, "ratio"), MinPerSecond: rapid.SampledFrom([]uint32{0, 1, math.MaxUint32}).Draw(t, "min"),
			TTL: durations.Draw(t, "budget ttl"),
		}}
		_ = p.Validate() // may be an error, and never a panic
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var bs backends
		source := newScript()
		r := profiles.New(ctx, profiles.Config{Target: target, Source: source}, access{}, bs.mk,
			profiles.WithRouteLayers(resend{}))
		source.send(p, nil)
		require.NotContains(t, layer.Describe[request, *reply](r).String(), "panic")
		gone, leave := context.WithCancel(ctx)
		leave() // faults may delay: only that the stack was made is of interest
		_, _ = r.Call(gone, request{method: http.MethodGet, path: "/"})
	})
}
