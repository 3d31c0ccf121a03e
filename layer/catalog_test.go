package layer_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

type (
	kitQ      = *layertest.Request
	kitR      = *layertest.Response
	kitS      = layer.Service[kitQ, kitR]
	kitL      = layer.Layer[kitQ, kitR]
	kitOption = layer.Option[kitR]
)

// entry is a layer in the catalog, from which the tests of all layers take their rows. TestCatalog
// checks that every constructor of the package has an entry.
type entry struct {
	name        string // in Stack, Error.Layer, Describe and metrics
	constructor string

	// layer calls the constructor with limits that the checks do not reach. A layer that needs a context,
	// or that each check has to make in its bubble, has background instead. Both are nil for a service that
	// is always ready, which layertest cannot check as a layer.
	layer      func(...kitOption) kitL
	background func(context.Context, ...kitOption) kitL

	contract layertest.Layer              // what the layer declares, without Layer and New: TestConform and TestMatrix
	variants map[string]layertest.Layer   // with other arguments or in a stack: TestConform
	services map[string]layertest.Service // as a service without an inner one: TestConform
	disabled kitL                         // with arguments for which the layer does nothing, unless nil: TestConform

	random    func(*randomStack) randomL         // with arguments from the stack's seed: TestRandomStacks
	invalid   map[string]func()                  // constructor calls by the panic, without "layer: ": TestConstructorsInvalidArguments
	series    []string                           // that exist once the layer is made: TestInstrumentsSeriesAtCreation
	callbacks map[string]func(*panicking) panicL // that panic on the caller's goroutine: TestPanicOnCallerGoroutine
}

// newLayer calls the constructor.
func (e entry) newLayer(ctx context.Context, opts ...kitOption) kitL {
	if e.background != nil {
		return e.background(ctx, opts...)
	}
	return e.layer(opts...)
}

// isLayer reports whether layertest can check it as a layer.
func (e entry) isLayer() bool { return e.layer != nil || e.background != nil }

// spec returns the layer with its contract.
func (e entry) spec() layertest.Layer {
	spec := e.contract
	if e.background != nil {
		spec.New = func(ctx context.Context, next kitS) kitS { return e.background(ctx)(next) }
	} else {
		spec.Layer = e.layer()
	}
	return spec
}

// catalog returns all layers of the package, in the order of the table in the package documentation.
func catalog() []entry {
	return slices.Concat(
		timeEntries(), admissionEntries(), failureEntries(), retryEntries(),
		routeEntries(), compositionEntries(), observationEntries(),
	)
}

// catalogLayers returns the entries that layertest can check as layers.
func catalogLayers() []entry {
	return slices.DeleteFunc(catalog(), func(e entry) bool { return !e.isLayer() })
}

const (
	longTime = 10 * time.Hour
	plenty   = 1_000_000_000
)

func timeEntries() []entry {
	read := func(kitQ) (time.Duration, bool) { return longTime, true }
	write := func(req kitQ, _ time.Duration) kitQ { return req }
	return []entry{
		{
			name: "timeout", constructor: "Timeout",
			layer:    func(o ...kitOption) kitL { return layer.Timeout[kitQ](longTime, o...) },
			disabled: layer.Timeout[kitQ, kitR](0),
			variants: map[string]layertest.Layer{
				"with the other timeouts": {Layer: layer.NewStack[kitQ, kitR]().
					With("total", layer.Timeout[kitQ, kitR](3*time.Minute)).
					With("head", layer.ResponseHeaderTimeout[kitQ, kitR](2*time.Minute)).
					With("idle", layer.IdleTimeout[kitQ, kitR](time.Minute)).Layer()},
			},
			random: func(s *randomStack) randomL {
				return layer.Timeout[randomQ, randomR](50*time.Millisecond + s.ms(300))
			},
			invalid: map[string]func(){
				"Timeout is -1ns, must be at least 0s": func() { layer.Timeout[kitQ, kitR](-1) },
			},
			series: []string{"expired limit=total"},
			callbacks: map[string]func(*panicking) panicL{
				"until": func(p *panicking) panicL { return layer.Timeout[int](time.Hour, p.completion()) },
			},
		},
		{
			name: "response_header_timeout", constructor: "ResponseHeaderTimeout",
			layer:    func(o ...kitOption) kitL { return layer.ResponseHeaderTimeout[kitQ](longTime, o...) },
			disabled: layer.ResponseHeaderTimeout[kitQ, kitR](0),
			random: func(s *randomStack) randomL {
				return layer.ResponseHeaderTimeout[randomQ, randomR](50*time.Millisecond + s.ms(200))
			},
			invalid: map[string]func(){
				"ResponseHeaderTimeout is -1ns, must be at least 0s": func() { layer.ResponseHeaderTimeout[kitQ, kitR](-1) },
			},
			series: []string{"expired limit=response_header"},
			callbacks: map[string]func(*panicking) panicL{
				"until": func(p *panicking) panicL { return layer.ResponseHeaderTimeout[int](time.Hour, p.completion()) },
			},
		},
		{
			name: "idle_timeout", constructor: "IdleTimeout",
			layer:    func(o ...kitOption) kitL { return layer.IdleTimeout[kitQ](longTime, o...) },
			disabled: layer.IdleTimeout[kitQ, kitR](0),
			random: func(s *randomStack) randomL {
				return layer.IdleTimeout[randomQ, randomR](10*time.Millisecond + s.ms(50))
			},
			invalid: map[string]func(){
				"IdleTimeout is -1ns, must be at least 0s": func() { layer.IdleTimeout[kitQ, kitR](-1) },
			},
			series: []string{"expired limit=idle"},
			callbacks: map[string]func(*panicking) panicL{
				"until": func(p *panicking) panicL { return layer.IdleTimeout[int](time.Hour, p.completion()) },
			},
		},
		{
			name: "deadline_in", constructor: "DeadlineFromRequest",
			layer: func(o ...kitOption) kitL { return layer.DeadlineFromRequest(read, o...) },
			variants: map[string]layertest.Layer{
				"not given": {
					Layer:    layer.DeadlineFromRequest[kitQ, kitR](func(kitQ) (time.Duration, bool) { return 0, false }),
					NoAllocs: true,
				},
			},
			random: func(s *randomStack) randomL {
				remaining := 50*time.Millisecond + s.ms(300)
				return layer.DeadlineFromRequest[randomQ, randomR](func(randomQ) (time.Duration, bool) { return remaining, true })
			},
			invalid: map[string]func(){
				"DeadlineFromRequest: nil function": func() { layer.DeadlineFromRequest[kitQ, kitR](nil) },
			},
			series: []string{"rejected layer=deadline", "expired limit=deadline"},
			callbacks: map[string]func(*panicking) panicL{
				"read": func(p *panicking) panicL {
					return layer.DeadlineFromRequest[int, panicR](func(int) (time.Duration, bool) { p.boom(); return time.Hour, true })
				},
			},
		},
		{
			name: "deadline_out", constructor: "DeadlineToRequest",
			layer:    func(o ...kitOption) kitL { return layer.DeadlineToRequest(write, 0, o...) },
			contract: layertest.Layer{NoAllocs: true},
			variants: map[string]layertest.Layer{
				"below deadline_in": {Layer: layer.NewStack[kitQ, kitR]().
					With("in", layer.DeadlineFromRequest[kitQ, kitR](read)).
					With("out", layer.DeadlineToRequest[kitQ, kitR](write, time.Millisecond)).Layer()},
			},
			random: func(s *randomStack) randomL {
				return layer.DeadlineToRequest[randomQ, randomR](func(req randomQ, _ time.Duration) randomQ { return req }, s.ms(20))
			},
			invalid: map[string]func(){
				"DeadlineToRequest: nil function":                        func() { layer.DeadlineToRequest[kitQ, kitR](nil, 0) },
				"DeadlineToRequest: margin is -1ns, must be at least 0s": func() { layer.DeadlineToRequest[kitQ, kitR](write, -1) },
			},
			series: []string{"rejected layer=deadline"},
		},
	}
}

func admissionEntries() []entry {
	policy := func(n int) layer.AdaptivePolicy { return layer.AdaptivePolicy{Min: n, Max: n} }
	shed := layer.NewStack[kitQ, kitR]().With("shed", layer.Shed[kitQ, kitR](layer.ShedPolicy{Normal: 1}))
	group := func(keys int) func(kitQ) int { return func(req kitQ) int { return req.ID % keys } }
	return []entry{
		{
			name: "limit", constructor: "Limit",
			layer:    func(o ...kitOption) kitL { return layer.Limit[kitQ](8, o...) },
			contract: layertest.Layer{Limit: 8, NoAllocs: true},
			variants: map[string]layertest.Layer{
				"one":       {Layer: layer.Limit[kitQ, kitR](1), Limit: 1},
				"at return": {Layer: layer.Limit[kitQ](8, layer.WithCompletion(layer.AtReturn[kitR])), Limit: 8, AtReturn: true},
			},
			random: func(s *randomStack) randomL { return layer.Limit[randomQ, randomR](1 + s.draw(3)) },
			invalid: map[string]func(){
				"Limit is -1, must be at least 0": func() { layer.Limit[kitQ, kitR](-1) },
			},
			series: []string{"rejected layer=limit"},
			callbacks: map[string]func(*panicking) panicL{
				"until": func(p *panicking) panicL { return layer.Limit[int](1, p.completion()) },
			},
		},
		{
			// If Min and Max are equal, the layer is a Limit, which the checks know. The limit is still measured.
			name: "adaptive", constructor: "AdaptiveLimit",
			layer:    func(o ...kitOption) kitL { return layer.AdaptiveLimit[kitQ](policy(8), o...) },
			contract: layertest.Layer{Limit: 8, NoAllocs: true},
			variants: map[string]layertest.Layer{
				"one": {Layer: layer.AdaptiveLimit[kitQ, kitR](policy(1)), Limit: 1},
				"at return": {
					Layer: layer.AdaptiveLimit[kitQ](policy(8), layer.WithCompletion(layer.AtReturn[kitR])), Limit: 8, AtReturn: true,
				},
				"below a queue": {
					Layer: layer.NewStack[kitQ, kitR]().Queue(16, 0).With("adaptive", layer.AdaptiveLimit[kitQ, kitR](policy(4))).Layer(),
					Limit: 4, Queue: 16,
				},
			},
			random: func(*randomStack) randomL {
				return layer.AdaptiveLimit[randomQ, randomR](layer.AdaptivePolicy{Initial: 2})
			},
			invalid: map[string]func(){
				"AdaptivePolicy.Min is -1, must be at least 1": func() { layer.AdaptiveLimit[kitQ, kitR](layer.AdaptivePolicy{Min: -1}) },
			},
			series: []string{"rejected layer=adaptive", "limit"},
			callbacks: map[string]func(*panicking) panicL{
				"classify": func(p *panicking) panicL { return layer.AdaptiveLimit[int](layer.AdaptivePolicy{}, p.classifier()) },
				"until":    func(p *panicking) panicL { return layer.AdaptiveLimit[int](layer.AdaptivePolicy{}, p.completion()) },
			},
		},
		{
			// The checks treat rejections as a limit of requests in flight. So the rate is above theirs.
			name: "rate", constructor: "RateLimit",
			layer:    func(o ...kitOption) kitL { return layer.RateLimit[kitQ](plenty, plenty, o...) },
			contract: layertest.Layer{NoAllocs: true},
			random:   func(*randomStack) randomL { return layer.RateLimit[randomQ, randomR](30, 3) },
			invalid: map[string]func(){
				"RateLimit: rate is NaN, must be at least 0": func() { layer.RateLimit[kitQ, kitR](math.NaN(), 1) },
				"RateLimit: burst is -1, must be at least 0": func() { layer.RateLimit[kitQ, kitR](1, -1) },
			},
			series: []string{"rejected layer=rate"},
		},
		{
			name: "rate_by", constructor: "RateLimitBy",
			layer:    func(o ...kitOption) kitL { return layer.RateLimitBy(group(3), plenty, plenty, 0, o...) },
			contract: layertest.Layer{NoAllocs: true},
			variants: map[string]layertest.Layer{
				"a hundred keys": {Layer: layer.RateLimitBy[int, kitQ, kitR](group(100), plenty, plenty, 0), NoAllocs: true},
				"a key for all":  {Layer: layer.RateLimitBy[int, kitQ, kitR](group(1), plenty, plenty, 0), NoAllocs: true},
			},
			random: func(*randomStack) randomL {
				return layer.RateLimitBy[int, randomQ, randomR](func(req randomQ) int { return req.id % 3 }, 10, 2, 0)
			},
			invalid: map[string]func(){
				"RateLimitBy: nil key function":                func() { layer.RateLimitBy[int, kitQ, kitR](nil, 1, 1, 1) },
				"RateLimitBy: rate is -1, must be at least 0":  func() { layer.RateLimitBy[int, kitQ, kitR](group(3), -1, 1, 1) },
				"RateLimitBy: burst is -1, must be at least 0": func() { layer.RateLimitBy[int, kitQ, kitR](group(3), 1, -1, 1) },
				"RateLimitBy: keys is -1, must be at least 0":  func() { layer.RateLimitBy[int, kitQ, kitR](group(3), 1, 1, -1) },
			},
			series: []string{"rejected layer=rate_by"},
			callbacks: map[string]func(*panicking) panicL{
				"key": func(p *panicking) panicL {
					return layer.RateLimitBy[int, int, panicR](func(n int) int { p.boom(); return n }, 1e6, 1000, 10)
				},
			},
		},
		{
			name: "shed", constructor: "Shed",
			layer:    func(o ...kitOption) kitL { return layer.Shed[kitQ](layer.ShedPolicy{Normal: 1}, o...) },
			contract: layertest.Layer{NoAllocs: true},
			variants: map[string]layertest.Layer{
				"in a stack":    {Layer: shed.Layer(), NoAllocs: true},
				"above a limit": {Layer: shed.Limit(8).Layer(), Limit: 8, NoAllocs: true},
				"above a queue": {Layer: shed.Queue(16, 0).Limit(4).Layer(), Limit: 4, Queue: 16},
			},
			random: func(*randomStack) randomL { return layer.Shed[randomQ, randomR](layer.ShedPolicy{}) },
			invalid: map[string]func(){
				"ShedPolicy.Low is 0.75, must be at most Normal, 0.5": func() {
					layer.Shed[kitQ, kitR](layer.ShedPolicy{Normal: 0.5, Low: 0.75})
				},
			},
			series: []string{"rejected layer=shed"},
			callbacks: map[string]func(*panicking) panicL{
				"until": func(p *panicking) panicL { return layer.Shed[int](layer.ShedPolicy{}, p.completion()) },
			},
		},
		{
			name: "queue", constructor: "Queue",
			layer:    func(o ...kitOption) kitL { return layer.Queue[kitQ](16, 3*time.Second, o...) },
			contract: layertest.Layer{Queue: 16, MaxWait: 3 * time.Second},
			disabled: layer.Queue[kitQ, kitR](0, 0),
			variants: map[string]layertest.Layer{
				"long":            {Layer: layer.Queue[kitQ, kitR](500, time.Hour), Queue: 500, MaxWait: time.Hour, NoAllocs: true},
				"one":             {Layer: layer.Queue[kitQ, kitR](1, 3*time.Second), Queue: 1, MaxWait: 3 * time.Second},
				"without maximum": {Layer: layer.Queue[kitQ, kitR](16, 0), Queue: 16},
			},
			random: func(s *randomStack) randomL {
				capacity := 1 + s.draw(5)
				return layer.Queue[randomQ, randomR](capacity, 50*time.Millisecond+s.ms(200))
			},
			invalid: map[string]func(){
				"Queue: capacity is -1, must be at least 0":   func() { layer.Queue[kitQ, kitR](-1, 0) },
				"Queue: maxWait is -1ns, must be at least 0s": func() { layer.Queue[kitQ, kitR](1, -1) },
			},
			series: []string{"rejected layer=queue", "waiting"},
			callbacks: map[string]func(*panicking) panicL{
				"instrument": func(p *panicking) panicL {
					return layer.Queue[int](1, time.Hour, layer.WithMetrics[panicR](p.instruments()))
				},
			},
		},
		{
			// Contexts from outside a bubble do not block durably in it, so each check needs its own Drainer.
			name: "drain", constructor: "Drain",
			background: func(_ context.Context, o ...kitOption) kitL { return layer.Drain[kitQ](layer.NewDrainer(), o...) },
			contract:   layertest.Layer{NoAllocs: true},
			services:   map[string]layertest.Service{"closed": drainedService()},
			random:     func(s *randomStack) randomL { return layer.Drain[randomQ, randomR](s.drain) },
			invalid: map[string]func(){
				"Drain: nil Drainer": func() { layer.Drain[kitQ, kitR](nil) },
			},
			series: []string{"rejected layer=drain"},
			callbacks: map[string]func(*panicking) panicL{
				"until": func(p *panicking) panicL { return layer.Drain[int](layer.NewDrainer(), p.completion()) },
			},
		},
	}
}

func failureEntries() []entry {
	// The checks let more requests fail than the default policy allows.
	policy := layer.BreakerPolicy{ConsecutiveFailures: 1 << 30}
	// The checks expect the errors of inner, so Handle returns them.
	handle := func(_ context.Context, _ kitQ, o layer.Outcome[kitR]) (kitR, error) { return o.Response, o.Err }
	panicPolicy := layer.BreakerPolicy{ConsecutiveFailures: 1, MinSuccessRate: 0.5}
	neverHandles := func(context.Context, int, layer.Outcome[panicR]) (panicR, error) { panic("not called") }
	return []entry{
		{
			name: "breaker", constructor: "Breaker",
			layer:    func(o ...kitOption) kitL { return layer.Breaker[kitQ](policy, o...) },
			contract: layertest.Layer{NoAllocs: true},
			disabled: layer.Breaker[kitQ, kitR](layer.BreakerPolicy{ConsecutiveFailures: -1}),
			variants: map[string]layertest.Layer{
				"ratio": {
					Layer:    layer.Breaker[kitQ, kitR](layer.BreakerPolicy{ConsecutiveFailures: -1, MinSuccessRate: 1e-9, MinRequests: 1_000_000}),
					NoAllocs: true,
				},
				"at return": {
					Layer:    layer.Breaker[kitQ](policy, layer.WithCompletion(layer.AtReturn[kitR])),
					AtReturn: true, NoAllocs: true,
				},
			},
			services: map[string]layertest.Service{"probing": probingBreaker()},
			random: func(*randomStack) randomL {
				return layer.Breaker[randomQ, randomR](layer.BreakerPolicy{
					ConsecutiveFailures: 3, Backoff: layer.Backoff{Min: 50 * time.Millisecond, Max: 100 * time.Millisecond},
				})
			},
			invalid: map[string]func(){
				"BreakerPolicy.MinSuccessRate is 2, must be 0 to 1": func() { layer.Breaker[kitQ, kitR](layer.BreakerPolicy{MinSuccessRate: 2}) },
			},
			series: []string{"rejected layer=breaker", "trips", "open"},
			callbacks: map[string]func(*panicking) panicL{
				"classify": func(p *panicking) panicL { return layer.Breaker[int](panicPolicy, p.classifier()) },
				"until":    func(p *panicking) panicL { return layer.Breaker[int](panicPolicy, p.completion()) },
			},
		},
		{
			name: "fallback", constructor: "Fallback",
			layer: func(o ...kitOption) kitL {
				return layer.Fallback(layer.FallbackPolicy[kitQ, kitR]{Handle: handle}, o...)
			},
			contract: layertest.Layer{NoAllocs: true},
			random: func(s *randomStack) randomL {
				return layer.Fallback(layer.FallbackPolicy[randomQ, randomR]{Handle: s.instead})
			},
			invalid: map[string]func(){
				"FallbackPolicy: Handle must be set": func() { layer.Fallback(layer.FallbackPolicy[kitQ, kitR]{}) },
			},
			callbacks: map[string]func(*panicking) panicL{
				"classify": func(p *panicking) panicL {
					return layer.Fallback(layer.FallbackPolicy[int, panicR]{Handle: neverHandles}, p.classifier())
				},
				"when": func(p *panicking) panicL {
					return layer.Fallback(layer.FallbackPolicy[int, panicR]{
						Handle:     neverHandles,
						FallbackIf: func(layer.Class, layer.Outcome[panicR]) bool { p.boom(); return false },
					})
				},
			},
		},
		{
			name: "reconnect", constructor: "Reconnect",
			background: func(ctx context.Context, o ...kitOption) kitL {
				return func(next kitS) kitS {
					svc := layer.Reconnect(ctx, func(context.Context) (kitS, error) { return next, nil }, layer.Backoff{}, o...)
					_ = svc.Ready(context.Background()) // connects, without a request
					return svc
				}
			},
			contract: layertest.Layer{OutlivesInner: true, NoAllocs: true}, // it connects again
			random: func(s *randomStack) randomL {
				return func(next randomV) randomV {
					connect := func(context.Context) (randomV, error) { return next, nil }
					return layer.Reconnect(s.life, connect, layer.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond})
				}
			},
			invalid: map[string]func(){
				"Reconnect: nil function": func() { layer.Reconnect[kitQ, kitR](context.Background(), nil, layer.Backoff{}) },
				"Reconnect: backoff: max 1s must be at least min 2s": func() {
					connect := func(context.Context) (kitS, error) { return kitAnswer, nil }
					layer.Reconnect(context.Background(), connect, layer.Backoff{Min: 2 * time.Second, Max: time.Second})
				},
			},
			series: []string{"rejected layer=reconnect", "connects outcome=success", "connects outcome=failure"},
		},
	}
}

func retryEntries() []entry {
	budget := layer.NewBudget(0, 0, 1_000_000)
	// A queue above may wait after a rejection.
	wasSent := func(o layer.Outcome[kitR]) bool {
		return !errors.Is(o.Err, layer.ErrNotReady) && layer.DefaultClassifier(o).IsRetryable()
	}
	panicOrTrue := func(p *panicking) func(int) bool { return func(int) bool { p.boom(); return true } }
	hour := after[int](time.Hour)
	return []entry{
		{
			name: "retry", constructor: "Retry",
			layer: func(o ...kitOption) kitL {
				return layer.Retry(layer.RetryPolicy[kitQ, kitR]{Budget: budget, RetryIf: wasSent}, o...)
			},
			contract: layertest.Layer{MaxAttempts: 3, Pause: 250 * time.Millisecond},
			disabled: layer.Retry(layer.RetryPolicy[kitQ, kitR]{MaxAttempts: 1}),
			variants: retryVariants(budget),
			random: func(s *randomStack) randomL {
				return layer.Retry(layer.RetryPolicy[randomQ, randomR]{Budget: s.budget, AttemptTimeout: s.ms(2) * 60})
			},
			invalid: map[string]func(){
				"RetryPolicy.MaxAttempts is 101, must be 1 to 100": func() {
					layer.Retry(layer.RetryPolicy[kitQ, kitR]{MaxAttempts: 101})
				},
				"RetryPolicy.AttemptTimeout is -1ns, must be at least 0": func() {
					layer.Retry(layer.RetryPolicy[kitQ, kitR]{AttemptTimeout: -1})
				},
				"RetryPolicy.Backoff: backoff: jitter -1 must be from 0 to 100": func() {
					layer.Retry(layer.RetryPolicy[kitQ, kitR]{Backoff: layer.Backoff{Jitter: -1}})
				},
			},
			series: []string{
				"retries", "budget", "expired limit=attempt", "skipped reason=budget", "skipped reason=body", "skipped reason=attempts",
				"skipped reason=unsafe", "skipped reason=pushback", "skipped reason=deadline",
			},
			callbacks: map[string]func(*panicking) panicL{
				"requests": func(p *panicking) panicL {
					return layer.Retry(layer.RetryPolicy[int, panicR]{CanRetry: panicOrTrue(p)})
				},
				"outcomes": func(p *panicking) panicL {
					return layer.Retry(layer.RetryPolicy[int, panicR]{RetryIf: func(layer.Outcome[panicR]) bool { p.boom(); return false }})
				},
				"classify": func(p *panicking) panicL { return layer.Retry(layer.RetryPolicy[int, panicR]{}, p.classifier()) },
				"until": func(p *panicking) panicL {
					return layer.Retry(layer.RetryPolicy[int, panicR]{AttemptTimeout: time.Hour}, p.completion())
				},
			},
		},
		{
			name: "hedge", constructor: "Hedge",
			layer: func(o ...kitOption) kitL { return layer.Hedge(after[kitQ](longTime), o...) },
			variants: map[string]layertest.Layer{
				"no samples": {Layer: layer.Hedge[kitQ, kitR](layer.HedgePolicy[kitQ]{})},
				"samples":    {Layer: layer.Hedge[kitQ, kitR](layer.HedgePolicy[kitQ]{MinSamples: 1, MinDelay: 100 * time.Hour})},
				"for others": {
					Layer:       layer.Hedge[kitQ, kitR](layer.HedgePolicy[kitQ]{HedgeIf: func(kitQ) bool { return false }}),
					Transparent: true,
				},
				"copies": {
					Layer: layer.Hedge[kitQ, kitR](layer.HedgePolicy[kitQ]{
						Budget: budget, MinDelay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond,
					}),
					MaxAttempts: 2, Pause: 10 * time.Millisecond,
				},
			},
			random: func(s *randomStack) randomL {
				return layer.Hedge[randomQ, randomR](layer.HedgePolicy[randomQ]{
					Budget: s.budget, MinDelay: 30 * time.Millisecond, MaxDelay: 30 * time.Millisecond,
				})
			},
			invalid: map[string]func(){
				"HedgePolicy.Quantile is 1, must be above 0 and below 1": func() {
					layer.Hedge[kitQ, kitR](layer.HedgePolicy[kitQ]{Quantile: 1})
				},
			},
			series: []string{"hedges outcome=sent", "hedges outcome=won", "hedges outcome=skipped", "budget"},
			callbacks: map[string]func(*panicking) panicL{
				"only": func(p *panicking) panicL {
					return layer.Hedge[int, panicR](layer.HedgePolicy[int]{HedgeIf: panicOrTrue(p)})
				},
				"classify": func(p *panicking) panicL { return layer.Hedge(hour, p.classifier()) },
				"alone":    func(p *panicking) panicL { return layer.Hedge(layer.HedgePolicy[int]{}, p.classifier()) },
				"until":    func(p *panicking) panicL { return layer.Hedge(hour, p.completion()) },
			},
		},
	}
}

// retryVariants retry responses with a mark too.
func retryVariants(budget *layer.Budget) map[string]layertest.Layer {
	mark := func(rsp kitR) { rsp.Header["again"] = "yes" }
	classOf := func(o layer.Outcome[kitR]) layer.Class {
		if o.Err == nil && o.Response.Header["again"] != "" {
			return layer.Retryable
		}
		return layer.DefaultClassifier(o)
	}
	classify := layer.WithClassifier(classOf)
	wasSent := func(o layer.Outcome[kitR]) bool {
		return !errors.Is(o.Err, layer.ErrNotReady) && classOf(o).IsRetryable()
	}
	pause := 250 * time.Millisecond
	retry := layer.Retry(layer.RetryPolicy[kitQ, kitR]{Budget: budget}, classify)
	retryAfterSend := layer.Retry(layer.RetryPolicy[kitQ, kitR]{Budget: budget, RetryIf: wasSent}, classify)
	return map[string]layertest.Layer{
		"defaults": {Layer: layer.Retry[kitQ, kitR](layer.RetryPolicy[kitQ, kitR]{}), MaxAttempts: 3, Pause: pause},
		"responses": {
			Layer:       layer.Retry(layer.RetryPolicy[kitQ, kitR]{MaxAttempts: 5, Budget: budget}, classify),
			MaxAttempts: 5, Pause: pause, Retryable: mark,
		},
		"per try": {
			Layer:       layer.Retry(layer.RetryPolicy[kitQ, kitR]{AttemptTimeout: time.Second, Budget: budget}, classify),
			MaxAttempts: 3, Pause: time.Second + pause, Retryable: mark,
		},
		"no body kept": {
			Layer:       layer.Retry[kitQ, kitR](layer.RetryPolicy[kitQ, kitR]{MaxBodyBytes: -1}),
			MaxAttempts: 3, Pause: pause,
		},
		"over a limit": {
			Layer: layer.NewStack[kitQ, kitR]().With("retry", retry).Limit(4).Layer(),
			Limit: 4, MaxAttempts: 3, Pause: pause, Retryable: mark,
		},
		"over a queue": {
			Layer: layer.NewStack[kitQ, kitR]().With("retry", retry).Queue(16, 3*time.Second).Layer(),
			Queue: 16, MaxWait: 3 * time.Second, MaxAttempts: 3, Pause: pause, Retryable: mark,
		},
		"in a queue": {
			Layer: layer.NewStack[kitQ, kitR]().Queue(16, 3*time.Second).With("retry", retryAfterSend).Layer(),
			Queue: 16, MaxWait: 3 * time.Second, MaxAttempts: 3, Pause: pause, Retryable: mark,
		},
		"in itself": {
			Layer:       layer.NewStack[kitQ, kitR]().With("outer", retry).With("inner", retry).Layer(),
			MaxAttempts: 3, Pause: pause, Retryable: mark,
		},
	}
}

// routeEntries are the layers that choose or make a service.
func routeEntries() []entry {
	key := func(req kitQ) (int, error) { return req.ID % 3, nil }
	makeAnswer := func(int) kitS { return kitAnswer }
	return []entry{
		{
			// A router is always ready, so it is checked as a service. It returns the rejections of its routes.
			name: "router", constructor: "Router",
			services: map[string]layertest.Service{
				"plain":  {New: func(context.Context) kitS { return layer.Router(key, makeAnswer) }},
				"bodies": {New: func(context.Context) kitS { return layer.Router(key, func(int) kitS { return kitAnswerWithBody }) }},
				"with a cache": {New: func(ctx context.Context) kitS {
					mk := func(context.Context, int) kitS { return kitAnswer }
					return layer.NewCache(ctx, mk, layer.CachePolicy{}).Router(key)
				}},
			},
			random: func(*randomStack) randomL {
				return func(next randomV) randomV {
					return layer.Router(func(req randomQ) (int, error) { return req.id % 3, nil }, func(int) randomV { return next })
				}
			},
			invalid: map[string]func(){
				"Router: nil key function": func() { layer.Router(nil, makeAnswer) },
				"Router: nil Make":         func() { layer.Router[int, kitQ, kitR](key, nil) },
			},
		},
		{
			name: "cache", constructor: "NewCache",
			background: func(ctx context.Context, o ...kitOption) kitL {
				return func(next kitS) kitS {
					mk := func(context.Context, string) kitS { return next }
					return layer.NewCache(ctx, mk, layer.CachePolicy{}, o...).Service("web")
				}
			},
			contract: layertest.Layer{OutlivesInner: true, NoAllocs: true}, // the next service may be open
			random: func(s *randomStack) randomL {
				return func(next randomV) randomV {
					mk := func(context.Context, int) randomV { return next }
					return layer.NewCache(s.life, mk, layer.CachePolicy{IdleTimeout: 50 * time.Millisecond}).Service(1)
				}
			},
			invalid: map[string]func(){
				"NewCache: nil function": func() {
					layer.NewCache[int, kitQ, kitR](context.Background(), nil, layer.CachePolicy{})
				},
				"CachePolicy.Capacity is -1, must be at least 0": func() {
					layer.NewCache(context.Background(), func(context.Context, int) kitS { return kitAnswer }, layer.CachePolicy{Capacity: -1})
				},
				"Cache.Router: nil key function": func() {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					layer.NewCache(ctx, func(context.Context, int) kitS { return kitAnswer }, layer.CachePolicy{}).Router(nil)
				},
			},
			series: []string{"rejected layer=cache"},
		},
		{
			name: "lazy", constructor: "Lazy",
			layer: func(o ...kitOption) kitL {
				return func(next kitS) kitS { return layer.Lazy(func() kitS { return next }, o...) }
			},
			contract: layertest.Layer{Transparent: true},
			random: func(*randomStack) randomL {
				return func(next randomV) randomV { return layer.Lazy(func() randomV { return next }) }
			},
			invalid: map[string]func(){
				"Lazy: nil function": func() { layer.Lazy[kitQ, kitR](nil) },
			},
		},
		{
			name: "shared", constructor: "Shared",
			layer:  func(...kitOption) kitL { return layer.Shared(layer.Limit[kitQ, kitR](1 << 30)) },
			random: func(s *randomStack) randomL { return layer.Shared(layer.Limit[randomQ, randomR](1 + s.draw(3))) },
			invalid: map[string]func(){
				"Shared: nil layer": func() { layer.Shared[kitQ, kitR](nil) },
			},
		},
		{
			name: "only", constructor: "Only",
			layer: func(...kitOption) kitL {
				return layer.Only(func(kitQ) bool { return true }, layer.MapRequest[kitQ, kitR](identity[kitQ]))
			},
			contract: layertest.Layer{NoAllocs: true},
			variants: map[string]layertest.Layer{
				"passes by": {
					Layer:    layer.Only(func(kitQ) bool { return false }, layer.MapRequest[kitQ, kitR](identity[kitQ])),
					NoAllocs: true,
				},
			},
			random: func(s *randomStack) randomL {
				return layer.Only(func(req randomQ) bool { return req.id%2 == 0 }, layer.Limit[randomQ, randomR](1+s.draw(3)))
			},
			invalid: map[string]func(){
				"Only: nil function": func() { layer.Only(nil, layer.MapRequest[kitQ, kitR](identity[kitQ])) },
				"Only: nil layer":    func() { layer.Only[kitQ, kitR](func(kitQ) bool { return true }, nil) },
			},
		},
	}
}

// compositionEntries are the layers that change or check messages. The checks compare the messages with
// their factories, so the layers return a copy of the request and the same response.
func compositionEntries() []entry {
	return []entry{
		{
			name: "map_request", constructor: "MapRequest",
			layer: func(...kitOption) kitL {
				return layer.MapRequest[kitQ, kitR](func(req kitQ) kitQ { other := *req; return &other })
			},
			variants: map[string]layertest.Layer{
				"unchanged": {Layer: layer.MapRequest[kitQ, kitR](identity[kitQ]), NoAllocs: true},
				"changed": {Layer: layer.MapRequest[kitQ, kitR](func(req kitQ) kitQ {
					other := *req
					other.Header = map[string]string{"changed": "yes"}
					return &other
				})},
			},
			random: func(*randomStack) randomL {
				return layer.MapRequest[randomQ, randomR](func(req randomQ) randomQ { other := *req; return &other })
			},
			invalid: map[string]func(){
				"MapRequest: nil function": func() { layer.MapRequest[kitQ, kitR](nil) },
			},
			callbacks: map[string]func(*panicking) panicL{
				"f": func(p *panicking) panicL {
					return layer.MapRequest[int, panicR](func(n int) int { p.boom(); return n })
				},
			},
		},
		{
			name: "map_response", constructor: "MapResponse",
			layer:    func(...kitOption) kitL { return layer.MapResponse[kitQ](identity[kitR]) },
			contract: layertest.Layer{Transparent: true},
			random: func(*randomStack) randomL {
				return layer.MapResponse[randomQ](func(rsp randomR) randomR { return &response{Body: rsp.Body} })
			},
			invalid: map[string]func(){
				"MapResponse: nil function": func() { layer.MapResponse[kitQ, kitR](nil) },
			},
			callbacks: map[string]func(*panicking) panicL{
				"f": func(p *panicking) panicL {
					return layer.MapResponse[int](func(rsp panicR) panicR { p.boom(); return rsp })
				},
			},
		},
		{
			name: "filter", constructor: "Filter",
			layer:    func(o ...kitOption) kitL { return layer.Filter(func(kitQ) error { return nil }, o...) },
			contract: layertest.Layer{Transparent: true},
			random: func(*randomStack) randomL {
				return layer.Filter[randomQ, randomR](func(req randomQ) error {
					if req.id%5 == 0 {
						return layer.ErrNotReady
					}
					return nil
				})
			},
			invalid: map[string]func(){
				"Filter: nil function": func() { layer.Filter[kitQ, kitR](nil) },
			},
			series: []string{"rejected layer=filter"},
			callbacks: map[string]func(*panicking) panicL{
				"f": func(p *panicking) panicL { return layer.Filter[int, panicR](func(int) error { p.boom(); return nil }) },
			},
		},
	}
}

func observationEntries() []entry {
	var responses, spans atomic.Int64
	start := func(span layer.Span[kitR]) func(context.Context, kitQ) (context.Context, layer.Span[kitR]) {
		return func(ctx context.Context, _ kitQ) (context.Context, layer.Span[kitR]) { return ctx, span }
	}
	// The checks expect that requests are served, so no request gets a fault.
	delay := layer.FaultPolicy[kitQ]{Fraction: 1, Delay: longTime, TTL: longTime, Match: func(kitQ) bool { return false }}
	failure := delay
	failure.Delay = 0
	failure.Err = layer.ErrInjected
	return []entry{
		{
			name: "metrics", constructor: "Metrics", // TestInstrumentsSeriesOfMetrics has its series
			layer: func(o ...kitOption) kitL { return layer.Metrics[kitQ](layer.Instruments{}, o...) },
			variants: map[string]layertest.Layer{
				"counted": {
					Layer: layer.Metrics[kitQ, kitR](layer.Instruments{Responses: total{&responses}}),
					Ended: func() int { return int(responses.Load()) },
				},
			},
			random: func(*randomStack) randomL { return layer.Metrics[randomQ, randomR](layer.Instruments{}) },
			callbacks: map[string]func(*panicking) panicL{
				"classify":   func(p *panicking) panicL { return layer.Metrics[int](layer.Instruments{}, p.classifier()) },
				"instrument": func(p *panicking) panicL { return layer.Metrics[int, panicR](p.instruments()) },
				"until":      func(p *panicking) panicL { return layer.Metrics[int](layer.Instruments{}, p.completion()) },
			},
		},
		{
			name: "trace", constructor: "Trace",
			layer: func(o ...kitOption) kitL { return layer.Trace(start(endCounter{new(atomic.Int64)}), o...) },
			variants: map[string]layertest.Layer{
				"counted": {
					Layer: layer.Trace(start(endCounter{&spans})),
					Ended: func() int { return int(spans.Load()) },
				},
				"not traced": {Layer: layer.Trace(start(nil)), Transparent: true},
			},
			random: func(s *randomStack) randomL {
				return layer.Trace(func(ctx context.Context, _ randomQ) (context.Context, layer.Span[randomR]) {
					s.spans.Add(1)
					return ctx, randomSpan{&s.spans}
				})
			},
			invalid: map[string]func(){
				"Trace: nil function": func() { layer.Trace[kitQ, kitR](nil) },
			},
			callbacks: map[string]func(*panicking) panicL{
				"head": func(p *panicking) panicL { return traceOf(p.boom, nothing) },
				"end":  func(p *panicking) panicL { return traceOf(nothing, p.boom) },
				"until": func(p *panicking) panicL {
					return layer.Trace(func(ctx context.Context, _ int) (context.Context, layer.Span[panicR]) {
						return ctx, panickingSpan{nothing, nothing}
					}, p.completion())
				},
			},
		},
		{
			name: "fault", constructor: "FaultInjection",
			layer:    func(o ...kitOption) kitL { return layer.FaultInjection(delay, o...) },
			disabled: layer.FaultInjection[kitQ, kitR](layer.FaultPolicy[kitQ]{TTL: time.Hour, Delay: 1}),
			variants: map[string]layertest.Layer{
				"errors for others": {Layer: layer.FaultInjection[kitQ, kitR](failure), Transparent: true},
			},
			random: func(s *randomStack) randomL {
				return layer.FaultInjection[randomQ, randomR](layer.FaultPolicy[randomQ]{
					Fraction: 1, Delay: s.ms(50), Err: layer.ErrInjected, TTL: time.Hour,
					Match: func(req randomQ) bool { return req.id%4 == 0 },
				})
			},
			invalid: map[string]func(){
				"FaultPolicy.TTL is 0s, must be above 0": func() {
					layer.FaultInjection[kitQ, kitR](layer.FaultPolicy[kitQ]{Fraction: 1, Delay: 1})
				},
			},
			series: []string{"injected fault=delay", "injected fault=error"},
			callbacks: map[string]func(*panicking) panicL{
				"match": func(p *panicking) panicL {
					return layer.FaultInjection[int, panicR](layer.FaultPolicy[int]{
						Fraction: 1, Delay: 1, TTL: time.Hour, Match: func(int) bool { p.boom(); return true },
					})
				},
			},
		},
		mirrorEntry(),
	}
}

// mirrorEntry has copies that panic in place of the others.
func mirrorEntry() entry {
	mirror := func(copies layer.Func[kitQ, kitR], p layer.MirrorPolicy[kitQ]) func(context.Context, ...kitOption) kitL {
		return func(ctx context.Context, o ...kitOption) kitL { return layer.Mirror(ctx, copies, forking{}, p, o...) }
	}
	variant := func(copies layer.Func[kitQ, kitR]) layertest.Layer {
		return layertest.Layer{New: func(ctx context.Context, next kitS) kitS {
			return mirror(copies, layer.MirrorPolicy[kitQ]{})(ctx)(next)
		}}
	}
	return entry{
		name: "mirror", constructor: "Mirror",
		background: mirror(func(context.Context, kitQ) (kitR, error) { panic("down") }, layer.MirrorPolicy[kitQ]{}),
		variants: map[string]layertest.Layer{
			"answers":   variant(kitAnswer),
			"fails":     variant(func(context.Context, kitQ) (kitR, error) { return nil, errors.New("down") }),
			"not ready": variant(func(context.Context, kitQ) (kitR, error) { return nil, layer.ErrNotReady }),
			"hangs": variant(func(ctx context.Context, _ kitQ) (kitR, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}),
			"for others": {
				New: func(ctx context.Context, next kitS) kitS {
					return layer.Mirror(ctx, next, forking{}, layer.MirrorPolicy[kitQ]{Match: func(kitQ) bool { return false }})(next)
				},
				Transparent: true,
			},
		},
		random: func(s *randomStack) randomL {
			copies := layer.Func[randomQ, randomR](func(ctx context.Context, req randomQ) (randomR, error) { return s.reply(ctx, req, 1), nil })
			return layer.Mirror(s.life, copies, randomEditor{}, layer.MirrorPolicy[randomQ]{Timeout: time.Second})
		},
		invalid: map[string]func(){
			"Mirror: nil service or Editor": func() {
				layer.Mirror(context.Background(), kitS(kitAnswer), nil, layer.MirrorPolicy[kitQ]{})
			},
			"MirrorPolicy.Fraction is 2, must be 0 to 1": func() {
				layer.Mirror(context.Background(), kitS(kitAnswer), forking{}, layer.MirrorPolicy[kitQ]{Fraction: 2})
			},
			"MirrorPolicy.MaxInFlight is -1, must be at least 0": func() {
				layer.Mirror(context.Background(), kitS(kitAnswer), forking{}, layer.MirrorPolicy[kitQ]{MaxInFlight: -1})
			},
		},
		series: []string{
			"mirrored outcome=answered", "mirrored outcome=failed", "mirrored outcome=rejected",
			"mirrored outcome=full", "mirrored outcome=skipped",
		},
	}
}

// kitAnswer answers each request without a body.
var kitAnswer = layer.Func[kitQ, kitR](func(_ context.Context, req kitQ) (kitR, error) {
	return &layertest.Response{ID: req.ID}, nil
})

func identity[T any](message T) T { return message }

// total is a counter for all labels together.
type total struct{ n *atomic.Int64 }

func (c total) With(...string) metrics.Counter { return c }
func (c total) Add(delta float64)              { c.n.Add(int64(delta)) }

// endCounter is a span that counts the admitted requests that ended.
type endCounter struct{ n *atomic.Int64 }

func (endCounter) Head(kitR)                {}
func (s endCounter) End(layer.Class, error) { s.n.Add(1) }

// TestCatalog checks that each exported constructor of a layer is in the catalog, and in all other
// places in which CONTRIBUTING.md asks for it.
func TestCatalog(t *testing.T) {
	entries := make(map[string]entry)
	for _, e := range catalog() {
		entries[e.constructor] = e
	}
	decls := declarations(t)
	for name, d := range decls {
		gaps := d.findGaps(name)
		if d.makesLayer() {
			e, ok := entries[name]
			if ok {
				gaps = append(gaps, d.findEntryGaps(e, decls)...)
			} else {
				gaps = append(gaps, "an entry in catalog_test.go, with name, constructor, layer, contract, random and invalid")
			}
			delete(entries, name)
		}
		for _, what := range gaps {
			t.Errorf("layer.%s lacks %s", name, what)
		}
	}
	for name, e := range entries {
		t.Errorf("the entry %q in catalog_test.go is for layer.%s, which is not a constructor of a layer", e.name, name)
	}
}

// declaration is an exported function or type of the package, or a method of Stack.
type declaration struct {
	file     string
	function *ast.FuncDecl // nil for a type
	policy   bool          // a type NAMEPolicy with type parameters
}

// declarations returns the declarations by name, those of methods with the prefix "Stack.".
func declarations(t *testing.T) map[string]declaration {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	all := make(map[string]declaration)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range source.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				prefix := ""
				if decl.Recv != nil {
					prefix = types.ExprString(decl.Recv.List[0].Type) + "."
				}
				all[strings.Replace(prefix, "[Req, Rsp]", "", 1)+decl.Name.Name] = declaration{file: file, function: decl}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					if typ, ok := spec.(*ast.TypeSpec); ok {
						all[typ.Name.Name] = declaration{file: file, policy: typ.Name.IsExported() && typ.TypeParams != nil && strings.HasSuffix(typ.Name.Name, "Policy")}
					}
				}
			}
		}
	}
	return all
}

// makesLayer reports whether d is a constructor of a layer.
func (d declaration) makesLayer() bool {
	if d.function == nil || d.function.Recv != nil || !d.function.Name.IsExported() || d.function.Type.Results == nil {
		return false
	}
	result := types.ExprString(d.function.Type.Results.List[0].Type)
	return regexp.MustCompile(`^(Layer|Service|\*Cache)\[`).MatchString(result)
}

// findGaps returns the places outside of the catalog in which the declaration with the given name is missing.
func (d declaration) findGaps(name string) (gaps []string) {
	if d.policy {
		for _, file := range []string{"httplayer/service.go", "grpclayer/call.go"} {
			if !contains(file, `\t`+name+` += layer\.`+name+`\[`) {
				gaps = append(gaps, "an alias in "+file)
			}
		}
	}
	if !d.makesLayer() {
		return gaps
	}
	word := strings.TrimPrefix(name, "New")
	test := strings.TrimSuffix(d.file, ".go") + "_test.go"
	if _, err := os.Stat(test); err != nil {
		gaps = append(gaps, "tests in "+test)
	}
	if !contains("doc.go", `//\t.*[ \t]`+word+`(\s|:)`) {
		gaps = append(gaps, fmt.Sprintf("a word in the table of layers in doc.go: %s", word))
	}
	if !contains("*_test.go", `func Example`+word+`\(\)`) {
		gaps = append(gaps, fmt.Sprintf("an example in example_%s: func Example%s", test, word))
	}
	return gaps
}

// findEntryGaps returns what is missing in e, the entry of the constructor d, and in the method of Stack for it.
func (d declaration) findEntryGaps(e entry, decls map[string]declaration) (gaps []string) {
	parameters := 0   // that may be invalid
	composes := false // a layer of another one
	for _, field := range d.function.Type.Params.List {
		_, isOption := field.Type.(*ast.Ellipsis)
		typ := types.ExprString(field.Type)
		composes = composes || strings.HasPrefix(typ, "Layer[")
		if !isOption && typ != "context.Context" && typ != "Instruments" {
			parameters += len(field.Names)
		}
	}
	if len(e.invalid) < parameters {
		gaps = append(gaps, fmt.Sprintf("invalid arguments in its entry in catalog_test.go: %d cases for %d parameters", len(e.invalid), parameters))
	}
	if e.random == nil {
		gaps = append(gaps, "random in its entry in catalog_test.go")
	}
	if !e.isLayer() && e.services == nil {
		gaps = append(gaps, "layer, background or services in its entry in catalog_test.go")
	}
	result := types.ExprString(d.function.Type.Results.List[0].Type)
	if d.function.Type.TypeParams.NumFields() > 2 || composes || !strings.HasPrefix(result, "Layer[") {
		return gaps // such a layer is added by With
	}
	method, ok := decls["Stack."+e.constructor]
	want := fmt.Sprintf(`s.With(%q, %s`, e.name, e.constructor)
	if !ok || !strings.HasPrefix(body(method.function), want) || d.hasOptions() != strings.HasSuffix(body(method.function), ", s.opts...))") {
		gaps = append(gaps, fmt.Sprintf("a method of Stack in %s, which returns %s(...)), with s.opts... if it has options", d.file, want))
	}
	return gaps
}

// hasOptions reports whether the constructor takes options.
func (d declaration) hasOptions() bool {
	parameters := d.function.Type.Params.List
	_, ok := parameters[len(parameters)-1].Type.(*ast.Ellipsis)
	return ok
}

// body returns the expression that the function f returns, or "".
func body(f *ast.FuncDecl) string {
	if statement, ok := f.Body.List[0].(*ast.ReturnStmt); ok {
		return types.ExprString(statement.Results[0])
	}
	return ""
}

// contains reports whether a file that matches the pattern contains the regular expression.
func contains(pattern, expression string) bool {
	files, _ := filepath.Glob(pattern)
	return slices.ContainsFunc(files, func(file string) bool {
		text, _ := os.ReadFile(file)
		return regexp.MustCompile(expression).Match(text)
	})
}
