package balance_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// roundRobin gives all endpoints as many requests, so that only outlier detection
// matters.
func roundRobin(e balance.OutlierDetection) []option {
	return []option{
		balance.WithPolicy[*response](balance.Policy{Picker: balance.RoundRobin(), Penalty: -1, OutlierDetection: e}),
		balance.WithClassifier(layer.DefaultClassifier[*response]),
	}
}

// fail makes a server fail while f returns true.
func (s *server) fail(f func() bool) *server {
	s.serve = func(context.Context, string) (*response, error) {
		if f() {
			return nil, errBroken
		}
		return body("x"), nil
	}
	return s
}

func always() bool { return true }

func never() bool { return false }

// sends calls the pool n times and returns how many were rejected.
func (p *pool) sends(t *testing.T, n int) (rejected int) {
	t.Helper()
	for range n {
		if err := p.send(t.Context()); errors.Is(err, layer.ErrNotReady) {
			rejected++
		}
	}
	return rejected
}

func (p *pool) states(ss []*server) string {
	states := make([]string, len(ss))
	for i, s := range ss {
		states[i], _ = p.of(s).Get("state").(string)
	}
	return strings.Join(states, "/")
}

func (p *pool) ejection(t *testing.T, s *server) *balance.EjectedError {
	t.Helper()
	var why *balance.EjectedError
	for _, e := range p.Snapshot() {
		if e.ID.Addr == s.addr {
			require.ErrorAs(t, e.Reason, &why)
		}
	}
	require.NotNil(t, why)
	return why
}

func TestOutlierConsecutiveFailures(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 3})...), servers(3)
		ss[0].fail(always)
		p.add(ss...)
		p.sends(t, 6)
		assert.Equal(t, "ready/ready/ready", p.states(ss))
		p.sends(t, 1)
		require.Equal(t, "ejected/ready/ready", p.states(ss))
		assert.Zero(t, p.sends(t, 30))
		assert.EqualValues(t, 3, ss[0].calls.Load(), "no more requests")

		why := p.ejection(t, ss[0])
		assert.Equal(t, "3 failures in a row", why.Cause)
		assert.Equal(t, 1, why.Times)
		require.ErrorIs(t, why, layer.ErrNotReady)
		assert.Equal(t, "ejected until "+why.Until.UTC().Format(time.RFC3339)+": 3 failures in a row", p.of(ss[0]).Get("reason"))
		left := time.Until(why.Until)
		assert.True(t, 27*time.Second <= left && left <= 30*time.Second, left)
		d := p.Describe().State
		assert.Equal(t, []any{1, uint64(1), uint64(0)}, []any{d.Get("ejected"), d.Get("ejections"), d.Get("ejections_skipped")})

		ss[0].fail(never)
		time.Sleep(left - 1)
		synctest.Wait()
		assert.Equal(t, "ejected/ready/ready", p.states(ss))
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, "ready/ready/ready", p.states(ss))
		assert.Nil(t, p.of(ss[0]).Get("reason"))
		p.sends(t, 9)
		assert.EqualValues(t, 6, ss[0].calls.Load())
	})
}

// A throttled response does not count for consecutive failures and does not end a row. It
// is a failure in the comparison.
func TestOutlierThrottled(t *testing.T) {
	errThrottled := errors.New("too many requests")
	throttled := func(o layer.Outcome[*response]) layer.Class {
		if errors.Is(o.Err, errThrottled) {
			return layer.Throttled
		}
		return layer.DefaultClassifier(o)
	}
	for name, tt := range map[string]struct {
		ejection balance.OutlierDetection
		failures int // of each three responses
		state    string
	}{
		"in a row":                  {balance.OutlierDetection{ConsecutiveFailures: 5}, 0, "ready"},
		"between failures in a row": {balance.OutlierDetection{ConsecutiveFailures: 5}, 1, "ejected"},
		"compared":                  {balance.OutlierDetection{Interval: time.Second, RequestVolume: 20}, 0, "ejected"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, append(roundRobin(tt.ejection), balance.WithClassifier(throttled))...), servers(6)
				n := 0
				ss[0].serve = func(context.Context, string) (*response, error) {
					if n++; n%3 < tt.failures {
						return nil, errBroken
					}
					return nil, errThrottled
				}
				p.add(ss...)
				p.sends(t, 400)
				time.Sleep(1500 * time.Millisecond)
				synctest.Wait()
				require.Equal(t, tt.state+"/ready/ready/ready/ready/ready", p.states(ss))
			})
		})
	}
}

func TestOutlierSuccessEndsRow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 3})...), servers(3)
		n := 0
		ss[0].fail(func() bool { n++; return n%3 != 0 })
		p.add(ss...)
		p.sends(t, 300)
		assert.Equal(t, "ready/ready/ready", p.states(ss))
	})
}

func TestOutlierDisabled(t *testing.T) {
	policy := balance.Policy{Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 1, Interval: time.Second}}
	for name, opts := range map[string][]option{
		"no failures": {balance.WithPolicy[*response](policy), neverFailing()},
		"no rule":     roundRobin(balance.OutlierDetection{BaseEjectionTime: time.Hour}),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, opts...), servers(5)
				ss[0].fail(always)
				p.add(ss...)
				p.sends(t, 1000)
				time.Sleep(2 * time.Second)
				assert.Equal(t, 5, p.Describe().State.Get("ready"))
				assert.Zero(t, p.Describe().State.Get("ejections"))
			})
		})
	}
}

func TestOutlierEjectionTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 2, MaxEjectionTime: 100 * time.Second})...), servers(3)
		ss[0].fail(always)
		p.add(ss...)
		again := func() *balance.EjectedError {
			p.sends(t, 6)
			return p.ejection(t, ss[0])
		}
		for i, want := range []time.Duration{30, 60, 90, 100, 100} {
			why := again()
			assert.Equal(t, i+1, why.Times)
			assert.LessOrEqual(t, time.Until(why.Until), want*time.Second)
			assert.GreaterOrEqual(t, time.Until(why.Until), want*time.Second*9/10)
			time.Sleep(time.Until(why.Until))
			synctest.Wait()
			require.Equal(t, "ready", p.of(ss[0]).Get("state"))
		}
		ss[0].fail(never)
		p.sends(t, 6)
		time.Sleep(100 * time.Second)
		ss[0].fail(always)
		assert.Equal(t, 6, again().Times, "after MaxEjectionTime")
		ss[0].fail(never)
		time.Sleep(100*time.Second + 101*time.Second)
		ss[0].fail(always)
		assert.Equal(t, 1, again().Times, "after more than MaxEjectionTime")
	})
}

// Responses in flight continue during an ejection and do not count after it.
func TestOutlierInFlight(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 2})...), servers(2)
		pr, pw := io.Pipe()
		ss[0].serve = func(context.Context, string) (*response, error) { return &response{pr}, nil }
		p.add(ss...)
		rsp, err := p.Call(t.Context(), "")
		require.NoError(t, err)
		ss[0].fail(always)
		p.sends(t, 5)
		require.Equal(t, "ejected/ready", p.states(ss))
		assert.EqualValues(t, 1, p.of(ss[0]).Get("in_flight"))
		go func() { _, _ = io.WriteString(pw, "late"); _ = pw.CloseWithError(errBroken) }()
		text, err := io.ReadAll(rsp.Body)
		require.ErrorIs(t, err, errBroken)
		assert.Equal(t, "late", string(text))
		assert.Zero(t, p.of(ss[0]).Get("in_flight"))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		p.sends(t, 2)
		assert.Equal(t, "ready/ready", p.states(ss), "one failure since its return")
		p.sends(t, 2)
		assert.Equal(t, "ejected/ready", p.states(ss))
	})
}
