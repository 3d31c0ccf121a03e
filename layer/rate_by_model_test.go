package layer_test

import (
	"fmt"
	"slices"
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

// rateModel has the same buckets as the layer, in a plain list. Its time is in eighths of a second,
// and one token arrives per eighth.
type rateModel struct {
	now    int
	recent []int       // the keys, the last used one at the end
	tokens map[int]int // as they were
	at     map[int]int // then
}

func (m *rateModel) left(key int) int {
	return min(m.tokens[key]+m.now-m.at[key], rateModelBurst)
}

// want returns the expected start of the result of a call.
func (m *rateModel) want(key int) string {
	if i := slices.Index(m.recent, key); i >= 0 {
		m.recent = slices.Delete(m.recent, i, i+1)
	} else {
		for len(m.recent) > 0 && m.left(m.recent[0]) == rateModelBurst {
			m.recent = m.recent[1:]
		}
		if len(m.recent) == rateModelKeys {
			m.recent = m.recent[1:]
		}
		m.tokens[key], m.at[key] = rateModelBurst, m.now
	}
	m.recent = append(m.recent, key)
	left := m.left(key)
	if left == 0 {
		return "rate_by: not ready: out of tokens"
	}
	m.tokens[key], m.at[key] = left-1, m.now
	return "no error"
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
				if known := layer.Describe(svc).State.Get("keys").(int); known != len(m.recent) {
					problem = fmt.Sprintf("step %d: %d keys are kept, want %d", i, known, len(m.recent))
					return
				}
			}
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}
