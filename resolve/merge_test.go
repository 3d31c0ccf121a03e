package resolve_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/resolve"
)

func TestMergeStart(t *testing.T) {
	for after, want := range map[time.Duration]string{
		5 * time.Second:  "replace " + a1 + " " + b1 + ", 5s",
		20 * time.Second: "replace " + a1 + ", 10s; add " + b1 + ", 20s",
	} {
		synctest.Test(t, func(t *testing.T) {
			var one, other script
			one.send("web", add(a1))
			other.change("web", func(*line) {})
			time.AfterFunc(after, func() { other.send("web", add(b1)) })
			ctx, cancel := context.WithCancel(t.Context())
			start := time.Now()
			var got []string
			time.AfterFunc(time.Minute, cancel)
			for u, err := range resolve.Merge(&one, &other).Resolve(ctx, "web") {
				j := &journal{}
				j.write(u, err)
				got = append(got, j.lines[0]+", "+time.Since(start).String())
			}
			assert.Equal(t, want, strings.Join(got, "; "), "other after %v", after)
			assert.Equal(t, time.Minute, time.Since(start))
		})
	}
}

func TestMergeErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var one, other script
		one.send("web", add(a1))
		other.send("web", add(b1))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		j := read(ctx, resolve.Merge(&one, &other), "web")
		assert.Equal(t, []string{"replace " + a1 + " " + b1}, j.news())
		other.cut("web")
		assert.Equal(t, []string{
			"merge: source 2 of 2: connection reset",
			`merge: source 2 of 2: resolve "web": stream ended`,
			"replace " + a1 + " " + b1,
		}, j.news(), "the whole set after the end of a source")
		one.send("web", remove(a1))
		assert.Equal(t, []string{"remove " + a1}, j.news(), "b1 stays")
		one.change("web", func(l *line) { l.reject = true })
		got := j.news()
		assert.Equal(t, "end", got[1], "when all have ended")
		assert.Contains(t, got[0], "source 1 of 2: web: not a name that this resolver resolves\nmerge: source 2")
	})
}

// The recovery of each source is yielded separately.
func TestMergeSourceRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var one, other script
		one.send("web", add(a1))
		other.send("web", add(b1))
		ctx, cancel := context.WithCancel(t.Context())
		j := read(ctx, resolve.Merge(one.lasting(), other.lasting()), "web")
		all := []string{"replace " + a1 + " " + b1}
		assert.Equal(t, all, j.news())
		one.cut("web")
		synctest.Wait()
		other.send("web", add(b1))
		assert.Equal(t, []string{"merge: source 1 of 2: connection reset"}, j.news(), "no change")
		one.mend("web")
		time.Sleep(5 * time.Millisecond) // the back-off
		assert.Equal(t, all, j.news(), "the whole set after the error")
		one.send("web", add(a1))
		assert.Empty(t, j.news(), "once")

		other.cut("web")
		synctest.Wait()
		other.send("web", add(b2))
		other.mend("web")
		time.Sleep(5 * time.Millisecond)
		assert.Equal(t, []string{"merge: source 2 of 2: connection reset", "add " + b2}, j.news(), "a change also ends the error")
		cancel()
		assert.Equal(t, []string{"end"}, j.news())
	})
}

func TestMergeWithoutResolvers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		j := read(ctx, resolve.Merge(), "web")
		assert.Equal(t, []string{"does not exist"}, j.news())
		cancel()
		assert.Equal(t, []string{"end"}, j.news())
	})
}
