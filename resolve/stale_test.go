package resolve_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// outage is a stream through a StaleResolver, over a source that comes and goes.
type outage struct {
	*script
	*journal

	stale  *resolve.StaleResolver
	cancel context.CancelFunc
	log    bytes.Buffer
}

// begin starts with ten endpoints known.
func begin(t *testing.T, p resolve.StalePolicy) *outage {
	o := &outage{script: &script{}}
	p.Log = slog.New(slog.NewTextHandler(&o.log, nil))
	o.send("web", many(10))
	o.stale = resolve.ServeStale(resolve.Reconnect(o.script, resolve.Backoff{Min: time.Millisecond, Max: time.Minute}), p)
	var ctx context.Context
	ctx, o.cancel = context.WithCancel(t.Context())
	o.journal = read(ctx, o.stale, "web")
	require.Len(t, o.news(), 1)
	return o
}

func many(n int) resolve.Update {
	u := resolve.Update{Kind: resolve.Replace}
	for i := range n {
		u.Endpoints = append(u.Endpoints, endpoint("10.0.0."+string(rune('0'+i))+":80"))
	}
	return u
}

// blink loses the source, and has it come back with u.
func (o *outage) blink(u resolve.Update) {
	o.cut("web")
	synctest.Wait()
	o.send("web", u)
	o.mend("web")
	time.Sleep(5 * time.Millisecond) // the back-off
	synctest.Wait()
}

func (o *outage) kept(t *testing.T) resolve.StaleStatus {
	t.Helper()
	synctest.Wait()
	list := o.stale.Status()
	require.Len(t, list, 1)
	return list[0]
}

// Row 11 of the reliability tests: a controller returns empty or wrong answers.
func TestServeStaleGrace(t *testing.T) {
	for name, tt := range map[string]struct {
		policy  resolve.StalePolicy
		after   resolve.Update
		held    bool
		outcome string
	}{
		"empty":          {after: empty, held: true, outcome: "empty"},
		"does not exist": {after: gone, held: true, outcome: "does not exist"},
		"empty replace":  {after: many(0), held: true, outcome: "empty"},
		"one of ten":     {after: many(1), outcome: "replace 10.0.0.0:80"},
		"no grace":       {policy: resolve.StalePolicy{Grace: -1}, after: empty, outcome: "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := begin(t, tt.policy)
				defer o.cancel()
				o.blink(tt.after)
				if tt.held {
					assert.Equal(t, []string{"connection reset"}, o.news())
					k := o.kept(t)
					assert.True(t, k.IsStale)
					assert.Equal(t, 10, k.Endpoints)
					time.Sleep(30*time.Second - 6*time.Millisecond)
					assert.Empty(t, o.news(), "before the grace is over")
					time.Sleep(6 * time.Millisecond)
				}
				got := o.news()
				require.NotEmpty(t, got)
				assert.Equal(t, tt.outcome, got[len(got)-1])
				k := o.kept(t)
				assert.False(t, k.IsStale)
				assert.Zero(t, k.Age)
				assert.NoError(t, k.Err)
				assert.Equal(t, tt.held, strings.Contains(o.log.String(), "held back"))
			})
		})
	}
}

func TestServeStaleWithoutError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := begin(t, resolve.StalePolicy{MaxAge: time.Second})
		defer o.cancel()
		time.Sleep(time.Hour) // silence is not age
		for _, u := range []resolve.Update{many(1), empty, many(10), gone, many(10)} {
			o.send("web", u)
			assert.Len(t, o.news(), 1)
		}
		o.blink(many(9))
		assert.Contains(t, o.news(), "replace "+strings.Join(addrs(9), " "))
		o.send("web", empty)
		assert.Equal(t, []string{"empty"}, o.news(), "the first update after the error was good")
		assert.Empty(t, o.log.String())
	})
}

func addrs(n int) []string {
	var list []string
	for _, e := range many(n).Endpoints {
		list = append(list, e.Addr.String())
	}
	return list
}

func TestServeStaleSourceRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := begin(t, resolve.StalePolicy{})
		defer o.cancel()
		o.blink(empty)
		o.news()
		o.send("web", add(addrs(2)...))
		assert.Equal(t, []string{"replace " + strings.Join(addrs(2), " ")}, o.news())
		o.send("web", remove(addrs(1)...))
		assert.Equal(t, []string{"remove " + addrs(1)[0]}, o.news(), "later updates pass as they come")
		assert.Equal(t, 1, strings.Count(o.log.String(), "level=WARN"))
		assert.Contains(t, o.log.String(), "source of endpoints is back")
	})
}

// The empty answers of a controller in a crash loop are held back, and logged once.
func TestServeStaleCrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := begin(t, resolve.StalePolicy{})
		defer o.cancel()
		for range 20 {
			o.blink(empty)
			time.Sleep(20 * time.Second)
		}
		assert.NotContains(t, o.news(), "empty")
		k := o.kept(t)
		assert.Equal(t, 10, k.Endpoints)
		assert.Equal(t, "web", k.Target)
		require.ErrorIs(t, k.Err, errReset)
		assert.GreaterOrEqual(t, k.Age, 400*time.Second)
		assert.Equal(t, 1, strings.Count(o.log.String(), "\n"))
	})
}

func TestServeStaleMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := begin(t, resolve.StalePolicy{MaxAge: time.Hour})
		o.cut("web")
		time.Sleep(time.Hour - time.Second)
		assert.NotContains(t, o.news(), "empty")
		k := o.kept(t)
		assert.Equal(t, resolve.StateExists, k.State)
		assert.Equal(t, time.Hour-time.Second, k.Age)
		time.Sleep(2 * time.Second)
		assert.Contains(t, o.news(), "empty")
		assert.Equal(t, resolve.StateEmpty, o.kept(t).State)
		assert.Equal(t, 1, strings.Count(o.log.String(), "is dropped"))
		o.send("web", many(1))
		o.mend("web")
		time.Sleep(time.Minute) // the back-off
		got := o.news()
		assert.Equal(t, "replace "+addrs(1)[0], got[len(got)-1], "the first answer after MaxAge")
		assert.Zero(t, o.kept(t).Age)
		o.cancel()
		o.news()
		assert.Empty(t, o.stale.Status(), "the stream has ended")
	})
}

func TestServeStaleSourceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := read(t.Context(), resolve.ServeStale(yielding(add(a1)), resolve.StalePolicy{}), "web")
		assert.Equal(t, []string{"add " + a1, "connection reset", "end"}, j.news())
	})
}
