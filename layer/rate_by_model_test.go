package layer_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

const (
	rateModelPerSecond = 8 // and time in eighths of a second: all sums are exact
	rateModelBurst     = 3
	rateModelKeys      = 4
)

// rateModel has a bucket for each key that was used, and removes none. Its time is in
// eighths of a second, and one token arrives per eighth.
type rateModel struct {
	now    int
	tokens map[int]int // as they were
	at     map[int]int // then
}

func (m *rateModel) left(key int) int {
	tokens, ok := m.tokens[key]
	if !ok {
		return rateModelBurst
	}
	return min(tokens+m.now-m.at[key], rateModelBurst)
}

// others returns the number of other keys with buckets that are not full.
func (m *rateModel) others(key int) (n int) {
	for k := range m.tokens {
		if k != key && m.left(k) < rateModelBurst {
			n++
		}
	}
	return n
}

// want returns the expected start of the result of a call.
func (m *rateModel) want(key int) string {
	switch left := m.left(key); {
	case left == rateModelBurst && m.others(key) == rateModelKeys:
		return "rate_by: not ready: no place"
	case left == 0:
		return "rate_by: not ready: out of tokens"
	default:
		m.tokens[key], m.at[key] = left-1, m.now
		return "no error"
	}
}

func TestRateLimitByModel(t *testing.T) {
	type step struct{ key, pass int }
	drawn := rapid.Custom(func(rt *rapid.T) step {
		return step{rapid.IntRange(0, 7).Draw(rt, "key"), max(rapid.IntRange(-6, 4).Draw(rt, "pass"), 0)}
	})
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(drawn, 1, 100).Draw(rt, "steps")
		var problem string
		synctest.Test(t, func(t *testing.T) {
			svc := rateByValue(rateModelPerSecond, rateModelBurst, rateModelKeys)
			m := &rateModel{tokens: map[int]int{}, at: map[int]int{}}
			for i, s := range steps {
				time.Sleep(time.Duration(s.pass) * time.Second / rateModelPerSecond)
				m.now += s.pass
				_, err := svc.Call(t.Context(), s.key)
				if want := m.want(s.key); !strings.HasPrefix(errText(err), want) {
					problem = fmt.Sprintf("step %d, key %d: %q, want %q", i, s.key, errText(err), want)
					return
				}
				if known := layer.Describe(svc).State.Get("keys").(int); known > rateModelKeys {
					problem = fmt.Sprintf("step %d: %d keys are kept", i, known)
					return
				}
			}
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}
