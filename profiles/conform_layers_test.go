package profiles_test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/profiles"
)

// kitStandard is what WithRouteLayers asks of a protocol, for the messages of layertest.
type kitStandard struct {
	kitAccess
	layer.BaseProtocol[kitRequest, kitResponse]
}

func (kitStandard) Complete(ctx context.Context, r kitResponse, o layer.Observer) kitResponse {
	return layer.AtEnd[kitResponse]()(ctx, r, o)
}

// Status is that of a failure where the kit asks for another try.
func (kitStandard) Status(r kitResponse) int {
	if r.Header["again"] != "" {
		return 503
	}
	return 200
}

func (kitStandard) RetryAfter(kitResponse, error) (time.Duration, bool) { return 0, false }

func (kitStandard) Drain(r kitResponse) {
	if r.Body != nil {
		layer.DrainBody(r.Body)
	}
}

func (kitStandard) Replay(r kitRequest, limit int64) layer.Replay[kitRequest] {
	if r.Body == nil {
		return nil
	}
	return kitReplay{layer.ReplayBody(r.Body, nil, limit), r}
}

func (kitStandard) EditRequest(r kitRequest, c layer.HeaderMutation) kitRequest {
	out := *r
	out.Header = maps.Clone(r.Header)
	for _, f := range c.Set {
		out.Header[f.Name] = f.Value
	}
	return &out
}

func (kitStandard) EditPath(r kitRequest, _, _ string) kitRequest { return r }

func (kitStandard) EditResponse(r kitResponse, c layer.HeaderMutation) kitResponse {
	for _, f := range c.Set {
		r.Header[f.Name] = f.Value
	}
	return r
}

func (kitStandard) NewResponse(kitRequest, layer.DirectResponse) kitResponse { panic("not asked for") }

func (kitStandard) TeeRequest(r kitRequest, limit int64, whole func(kitRequest, bool)) kitRequest {
	copied := &layertest.Request{ID: r.ID, Header: maps.Clone(r.Header)}
	if r.Body == nil {
		whole(copied, true)
		return r
	}
	out := *r
	out.Body = layer.TeeBody(r.Body, -1, limit, func(kept []byte, ok bool) {
		copied.Body = io.NopCloser(bytes.NewReader(kept))
		whole(copied, ok)
	})
	return &out
}

type kitReplay struct {
	*layer.BodyReplay
	req kitRequest
}

func (k kitReplay) Next() (kitRequest, bool) {
	body, ok := k.BodyReplay.Next()
	if !ok {
		return k.req, false
	}
	out := *k.req
	out.Body = body
	return &out, true
}

// The stacks of routes keep the contract, too, but for their limits, of which a
// Router's Ready knows nothing.
func TestStandardConforms(t *testing.T) {
	const pause = time.Millisecond
	marked := func(r kitResponse) { r.Header["again"] = "yes" }
	for name, tt := range map[string]struct {
		route  profiles.Route
		tries  int
		pause  time.Duration
		again  func(kitResponse)
		counts bool
	}{
		"timeout":         {route: profiles.Route{Timeout: time.Hour}},
		"measured":        {counts: true},
		"attempt timeout": {route: profiles.Route{AttemptTimeout: time.Hour}},
		"retries":         {route: profiles.Route{Retry: &profiles.Retry{Max: 2}}, tries: 3, pause: pause, again: marked},
		"hedge":           {route: profiles.Route{Hedge: 10 * time.Millisecond}, tries: 2, pause: 10 * time.Millisecond},
		"mirror":          {route: profiles.Route{Mirrors: []profiles.Mirror{{Authority: "shadow:80"}}}},
		"header": {route: profiles.Route{
			RequestHeader:  layer.HeaderMutation{Set: pairs("added", "1")},
			ResponseHeader: layer.HeaderMutation{Set: pairs("added", "1")},
		}},
		"fault of others": {route: profiles.Route{Faults: []profiles.Fault{{Delay: time.Hour, TTL: time.Hour}}}},
		"policy": {route: profiles.Route{
			Backends:       []profiles.Backend{weighted("web:80", 1)},
			RequestTimeout: time.Hour, ResponseTimeout: time.Hour, IdleTimeout: time.Hour, Overrides: true,
		}},
		"policy, retries": {
			route: profiles.Route{
				Backends: []profiles.Backend{{
					Target:        profiles.Target{Authority: "web:80", Weight: 1},
					RequestHeader: layer.HeaderMutation{Set: pairs("added", "1")},
				}},
				Retry:          &profiles.Retry{Max: 2, WithoutBudget: true, Statuses: []profiles.Status{{Min: 503, Max: 503}}, LastUnlimited: true},
				AttemptTimeout: time.Hour, Hedge: 100 * time.Hour,
			},
			tries: 3, pause: pause, again: marked, counts: true,
		},
		"all": {
			route: profiles.Route{
				Timeout: time.Hour, AttemptTimeout: time.Hour, Retry: &profiles.Retry{Max: 2}, Hedge: 100 * time.Hour,
				Mirrors:       []profiles.Mirror{{Authority: "shadow:80"}},
				RequestHeader: layer.HeaderMutation{Set: pairs("added", "1")},
			},
			tries: 3, pause: pause, again: marked, counts: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.route.Match = profiles.All{}
			layertest.Run(t, layertest.Layer{
				OutlivesInner: true, // another profile may come
				New: func(ctx context.Context, next kitService) kitService {
					src := newScript()
					c := profiles.Config{Target: target, Source: src}
					if tt.counts {
						c.Metrics = new(tallies).instruments
					}
					r := profiles.New(ctx, c, kitStandard{}, func(authority string) kitService {
						if authority == "shadow:80" {
							return layer.Func[kitRequest, kitResponse](func(context.Context, kitRequest) (kitResponse, error) { return nil, layer.ErrNotReady })
						}
						return next
					}, profiles.WithRouteLayers(kitStandard{}))
					src.send(&profiles.Profile{
						Routes: []profiles.Route{tt.route}, RetryBudget: &profiles.RetryBudget{MinPerSecond: 1_000_000, TTL: time.Second},
					}, nil)
					return r
				},
				MaxAttempts: tt.tries, Pause: tt.pause, Retryable: tt.again,
			})
		})
	}
}
