package resolve_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/resolve"
)

// moody is a source whose streams begin as its mood is.
type moody struct{ begins []resolve.Update } // nil: with an error; none: with silence

func (m *moody) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		begins := m.begins
		if begins == nil && !yield(resolve.Update{}, errReset) {
			return
		}
		for _, u := range begins {
			if u.Kind == 0 {
				yield(resolve.Update{}, fmt.Errorf("%s: %w", target, resolve.ErrUnresolvable))
				return
			}
			if !yield(u, nil) {
				return
			}
		}
		<-ctx.Done()
	}
}

// visit follows a target for d, and returns what was said.
func visit(t *testing.T, r resolve.Resolver, target string, d time.Duration) string {
	ctx, cancel := context.WithCancel(t.Context())
	j := read(ctx, r, target)
	time.Sleep(d)
	lines := j.news()
	cancel()
	j.news()
	return strings.Join(lines, ", ")
}

// A target that nobody watched for a while is asked for again while the source
// is away.
func TestKeepLastGoodRemembers(t *testing.T) {
	const web = "replace 10.0.0.0:80"
	fails, silent, well := []resolve.Update(nil), []resolve.Update{}, []resolve.Update{many(1)}
	never := []resolve.Update{{}}
	type step struct {
		begins []resolve.Update
		away   time.Duration // before it, with nobody watching
		watch  time.Duration
		want   string
	}
	for name, tt := range map[string]struct {
		policy resolve.StalePolicy
		steps  []step
	}{
		"it fails": {steps: []step{{well, 0, 1, web}, {fails, time.Hour, 1, web + ", connection reset"}}},
		"it is silent": {steps: []step{
			{well, 0, 1, web}, {silent, time.Hour, time.Second - 1, ""}, {silent, time.Hour, time.Second, web},
		}},
		"again and again": {steps: []step{
			{well, 0, 1, web}, {fails, time.Hour, 1, web + ", connection reset"}, {silent, time.Hour, time.Minute, web},
		}},
		"it is well":   {steps: []step{{well, 0, 1, web}, {[]resolve.Update{gone}, time.Hour, time.Hour, "does not exist"}}},
		"no such time": {steps: []step{{silent, 0, time.Hour, ""}}},
		"it was empty": {steps: []step{
			{well, 0, 1, web}, {[]resolve.Update{empty}, 0, 1, "empty"}, {silent, 0, time.Hour, ""},
		}},
		"it is none any more": {steps: []step{
			{well, 0, 1, web}, {never, 0, 1, "web: not a name that this resolver resolves, end"}, {silent, 0, time.Hour, ""},
		}},
		"it is doubtful": {steps: []step{
			{well, 0, 1, web}, {append(silent, remove("10.0.0.0:80"), many(1)), time.Hour, time.Hour, "remove 10.0.0.0:80, " + web},
		}},
		"it says nothing": {steps: []step{ // that means anything
			{well, 0, 1, web}, {[]resolve.Update{remove("10.0.0.1:80")}, time.Hour, time.Minute, "remove 10.0.0.1:80, " + web},
			{silent, time.Hour, time.Minute, web},
		}},
		"a day":    {steps: []step{{well, 0, 1, web}, {fails, 24 * time.Hour, 1, "connection reset"}}},
		"too long": {resolve.StalePolicy{IdleTTL: time.Minute}, []step{{well, 0, 1, web}, {silent, time.Minute, time.Hour, ""}}},
		"not at all": {
			resolve.StalePolicy{IdleTTL: -1}, []step{{well, 0, 1, web}, {fails, 0, 1, "connection reset"}},
		},
		"too old": {
			resolve.StalePolicy{MaxAge: time.Minute}, []step{{well, 0, 1, web}, {fails, time.Minute, 1, "connection reset"}},
		},
		"it gets too old": {
			resolve.StalePolicy{MaxAge: time.Hour},
			[]step{{well, 0, 1, web}, {silent, time.Minute, 59*time.Minute - 1, web}, {silent, 0, time.Second, ""}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m moody
				keeper := resolve.ServeStale(&m, tt.policy)
				for n, s := range tt.steps {
					m.begins = s.begins
					time.Sleep(s.away)
					assert.Equal(t, s.want, visit(t, keeper, "web", s.watch), "step %d", n)
				}
				assert.Empty(t, visit(t, resolve.ServeStale(&moody{silent}, tt.policy), "web", time.Hour), "another Keeper knows nothing")
			})
		})
	}
}

// What is remembered is judged as what was known before an error is, and its
// age counts from when it was last confirmed.
func TestKeepLastGoodDoubtsAfterItRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		keeper := resolve.ServeStale(s.lasting(), resolve.StalePolicy{Grace: time.Minute})
		s.send("web", many(2))
		visit(t, keeper, "web", time.Second)
		s.cut("web")
		time.Sleep(time.Hour)
		j := read(t.Context(), keeper, "web")
		assert.Equal(t, "replace 10.0.0.0:80 10.0.0.1:80", j.news()[0])
		kept := keeper.Status()[0]
		assert.Equal(t, time.Hour, kept.Age)
		assert.ErrorIs(t, kept.Err, errReset)

		s.send("web", empty)
		s.mend("web")
		time.Sleep(30 * time.Second)
		assert.NotContains(t, j.news(), "empty")
		assert.True(t, keeper.Status()[0].IsStale)
		time.Sleep(31 * time.Second)
		assert.Equal(t, []string{"empty"}, j.news())
		assert.Zero(t, keeper.Status()[0].Age)
	})
}

// So it is where the source was silent and said nothing of an error.
func TestKeepLastGoodDoubtsAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := moody{[]resolve.Update{many(1)}}
		slow := func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
			if len(m.begins) > 0 {
				return m.Resolve(ctx, target)
			}
			return func(yield func(resolve.Update, error) bool) {
				time.Sleep(10 * time.Second)
				yield(empty, nil)
				<-ctx.Done()
			}
		}
		keeper := resolve.ServeStale(resolve.Func(slow), resolve.StalePolicy{})
		visit(t, keeper, "web", 0)
		m.begins = nil
		assert.Equal(t, "replace 10.0.0.0:80", visit(t, keeper, "web", 39*time.Second))
		assert.Equal(t, "replace 10.0.0.0:80, empty", visit(t, keeper, "web", 41*time.Second))
	})
}

// A second stream of a target begins in an outage with what the first one knows.
func TestKeepLastGoodTellsTheOtherStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := begin(t, resolve.StalePolicy{})
		defer o.cancel()
		o.cut("web")
		time.Sleep(time.Minute)
		got := visit(t, o.keeper, "web", time.Millisecond)
		assert.True(t, strings.HasPrefix(got, "replace 10.0.0.0:80 10.0.0.1:80"), got)
		assert.NotContains(t, visit(t, o.keeper, "books", time.Minute), "replace", "of another target nothing is known")
	})
}

// What a consumer does with an update is nothing to other streams.
func TestKeepLastGoodRemembersACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := moody{[]resolve.Update{many(2)}}
		keeper := resolve.ServeStale(&m, resolve.StalePolicy{})
		visit(t, keeper, "web", 0)
		m.begins = nil
		for u := range keeper.Resolve(t.Context(), "web") {
			clear(u.Endpoints)
			assert.Equal(t, "replace 10.0.0.0:80 10.0.0.1:80", read(t.Context(), keeper, "web").news()[0])
			break
		}
	})
}

// Of two streams of a target, the one that ends last may know less.
func TestKeepLastGoodRemembersWhatWasGoodLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams := 0
		source := func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
			streams++
			n := streams
			return func(yield func(resolve.Update, error) bool) {
				if (n > 2 || yield(many(n), nil)) && (n == 2 || yield(resolve.Update{}, errReset)) {
					<-ctx.Done()
				}
			}
		}
		keeper := resolve.ServeStale(resolve.Func(source), resolve.StalePolicy{})
		ctx, cancel := context.WithCancel(t.Context())
		lost := read(ctx, keeper, "web")
		assert.Equal(t, "replace 10.0.0.0:80", lost.news()[0])
		time.Sleep(time.Minute)
		const good = "replace 10.0.0.0:80 10.0.0.1:80"
		assert.Equal(t, good, visit(t, keeper, "web", time.Second))
		cancel()
		lost.news()
		assert.Equal(t, good, strings.Split(visit(t, keeper, "web", 0), ", ")[0])
	})
}
