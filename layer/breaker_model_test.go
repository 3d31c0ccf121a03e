package layer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// TestBreakerModel drives a breaker with requests that overlap and end in every
// way, and compares it with a model that is a plain list.
func TestBreakerModel(t *testing.T) {
	step := rapid.Custom(func(rt *rapid.T) breakerStep {
		return breakerStep{
			kind: rapid.IntRange(0, 5).Draw(rt, "kind"),
			n:    rapid.IntRange(0, 50).Draw(rt, "n"),
			how:  rapid.SampledFrom(breakerEnds).Draw(rt, "how"),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		// All random values are drawn before the bubble begins, because rapid must not
		// unwind it.
		steps := rapid.SliceOfN(step, 1, 80).Draw(rt, "steps")
		var failure string
		synctest.Test(t, func(t *testing.T) { failure = driveBreaker(t, steps) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// breakerStep is one step of the model: a request starts, ends, or both, or time passes.
type breakerStep struct {
	kind, n int
	how     string
}

// Failures are more frequent, so that the breaker opens.
var breakerEnds = []string{"ok", "fail", "fail", "fail", "throttle", "cancel", "reject", "panic", "exit"}

const (
	modelFailures = 3
	modelRequests = 4
	modelWindow   = 10 * time.Second
)

type breakerModel struct {
	t    *testing.T
	svc  layer.Service[int, int]
	held []*breakerCaller

	era     int // number of the counting period; results of earlier periods are ignored
	closed  bool
	row     int
	began   time.Time // the era
	samples []breakerSample
	until   time.Time // while tripped
	probes  int
	probing bool      // the wait is over
	out     time.Time // until then, the probe in flight is the only one
	trips   int
}

type breakerSample struct {
	at time.Time
	ok bool
}

type breakerCaller struct {
	era     int
	verdict chan string
	cancel  context.CancelFunc
	over    chan error // what Call returned; closed without, if it unwound
}

type breakerCallerKey struct{}

func driveBreaker(t *testing.T, steps []breakerStep) (problem string) {
	inner := layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
		switch <-ctx.Value(breakerCallerKey{}).(*breakerCaller).verdict {
		case "fail":
			return 0, errBreaker
		case "throttle":
			return 0, errBreakerThrottle
		case "cancel":
			return 0, context.Cause(ctx)
		case "reject":
			return 0, layer.ErrNotReady
		case "panic":
			panic("inner")
		case "exit":
			runtime.Goexit()
		}
		return 0, nil
	})
	m := &breakerModel{t: t, closed: true, began: time.Now()}
	m.svc = layer.Breaker[int](layer.BreakerPolicy{
		ConsecutiveFailures: modelFailures, MinSuccessRate: 0.5, MinRequests: modelRequests, Window: modelWindow, Backoff: breakerBackoff,
	}, layer.WithClassifier(breakerClass))(inner)
	defer func() {
		for _, c := range m.held {
			c.verdict <- "ok"
		}
	}()
	for i, s := range steps {
		switch {
		case s.kind < 2:
			problem = m.arrive()
		case s.kind == 2 && len(m.held) > 0:
			problem = m.end(s.n%len(m.held), s.how)
		case s.kind == 3:
			time.Sleep(time.Duration(s.n) * 100 * time.Millisecond)
		default:
			if problem = m.arrive(); problem == "" && len(m.held) > 0 {
				problem = m.end(len(m.held)-1, s.how)
			}
		}
		if problem == "" {
			problem = m.same()
		}
		if problem != "" {
			return fmt.Sprintf("step %d, %+v: %s", i, s, problem)
		}
	}
	return ""
}

func (m *breakerModel) admits() bool {
	return m.closed || !time.Now().Before(m.out) && (m.probing || !time.Now().Before(m.until))
}

func (m *breakerModel) arrive() string {
	c := &breakerCaller{verdict: make(chan string), over: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.WithValue(m.t.Context(), breakerCallerKey{}, c))
	c.cancel = cancel
	go func() {
		defer close(c.over)
		defer func() { recover() }()
		_, err := m.svc.Call(ctx, 0)
		c.over <- err
	}()
	synctest.Wait()
	if !m.admits() {
		cancel()
		select {
		case err := <-c.over:
			if !errors.Is(err, layer.ErrNotReady) {
				return "no rejection: " + errText(err)
			}
			return ""
		default:
			c.verdict <- "ok"
			return "a request came through"
		}
	}
	select {
	case err := <-c.over:
		cancel()
		return "a request did not come through: " + errText(err)
	default:
	}
	if !m.closed {
		if !m.probing {
			m.probing = true
			m.era++
		}
		m.out = time.Now().Add(time.Second)
	}
	c.era = m.era
	m.held = append(m.held, c)
	return ""
}

func (m *breakerModel) end(i int, how string) string {
	c := m.held[i]
	m.held = append(m.held[:i:i], m.held[i+1:]...)
	if how == "cancel" {
		c.cancel()
	}
	c.verdict <- how
	synctest.Wait()
	c.cancel()
	if c.era != m.era {
		return "" // late
	}
	switch {
	case how == "ok" || how == "fail" || how == "throttle":
		m.count(how)
	case !m.closed:
		m.out = time.Time{}
	}
	return ""
}

func (m *breakerModel) count(how string) {
	switch {
	case !m.closed && how == "ok":
		m.era++
		*m = breakerModel{t: m.t, svc: m.svc, held: m.held, trips: m.trips, era: m.era, closed: true, began: time.Now()}
		return
	case !m.closed:
		m.probes++
		m.trip()
		return
	case how == "ok":
		m.row = 0
	case how == "fail":
		m.row++
	}
	m.samples = append(m.samples, breakerSample{time.Now(), how == "ok"})
	good, all := m.sum()
	if m.row >= modelFailures || all >= modelRequests && 2*good < all {
		m.trips++
		m.probes = 0
		m.trip()
	}
}

func (m *breakerModel) trip() {
	m.era++
	m.closed, m.probing, m.out = false, false, time.Time{}
	m.until = time.Now().Add(min(time.Second<<m.probes, time.Minute))
}

func (m *breakerModel) sum() (good, all int) {
	bucket := func(at time.Time) int { return int(at.Sub(m.began) / (modelWindow / 10)) }
	for _, s := range m.samples {
		if bucket(time.Now())-bucket(s.at) < 10 {
			all++
			if s.ok {
				good++
			}
		}
	}
	return good, all
}

// same compares the description of the breaker with the model.
func (m *breakerModel) same() string {
	if ready := layer.Poll(m.svc) == nil; ready != m.admits() {
		return fmt.Sprintf("it is ready: %v", ready)
	}
	want := map[string]any{"state": "open", "trips": int64(m.trips)}
	switch {
	case m.closed:
		_, all := m.sum()
		want["state"], want["failures"], want["requests"] = "closed", int64(m.row), uint64(all)
	case m.probing:
		want["state"] = "probing"
	default:
		want["next_probe"], want["failed_probes"] = max(time.Until(m.until), 0), m.probes
	}
	for key, value := range want {
		if got := breakerState(m.svc, key); got != value {
			return fmt.Sprintf("%s is %v, want %v", key, got, value)
		}
	}
	return ""
}
