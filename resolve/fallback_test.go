package resolve_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/resolve"
)

// journal writes down what a stream yielding.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func read(ctx context.Context, r resolve.Resolver, target string) *journal {
	j := &journal{}
	go func() {
		for u, err := range r.Resolve(ctx, target) {
			j.write(u, err)
		}
		j.write(resolve.Update{}, nil)
	}()
	return j
}

func (j *journal) write(u resolve.Update, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	line := u.Kind.String()
	switch {
	case err != nil:
		line = err.Error()
	case u.Kind == 0:
		line = "end"
	}
	for _, e := range u.Endpoints {
		line += " " + e.Addr.String()
	}
	for _, addr := range u.Removed {
		line += " " + addr.String()
	}
	j.lines = append(j.lines, line)
}

// news returns the items since the last call, after all goroutines wait.
func (j *journal) news() []string {
	synctest.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

func remove(addrs ...string) resolve.Update {
	u := resolve.Update{Kind: resolve.Remove}
	for _, a := range addrs {
		u.Removed = append(u.Removed, netip.MustParseAddrPort(a))
	}
	return u
}

func add(addrs ...string) resolve.Update {
	u := resolve.Update{Kind: resolve.Add}
	for _, a := range addrs {
		u.Endpoints = append(u.Endpoints, endpoint(a))
	}
	return u
}

var (
	gone  = resolve.Update{Kind: resolve.DoesNotExist}
	empty = resolve.Update{Kind: resolve.Empty}
)

const (
	a1 = "10.0.0.1:80"
	a2 = "10.0.0.2:80"
	b1 = "10.1.0.1:80"
	b2 = "10.1.0.2:80"
)

func TestFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second script
		first.send("web", add(a1))
		second.send("web", add(b1))
		ctx, cancel := context.WithCancel(t.Context())
		j := read(ctx, resolve.Fallback(first.lasting(), second.lasting()), "web")
		expect := func(lines ...string) { t.Helper(); assert.Equal(t, lines, j.news()) }
		watched := func(now, ever int) {
			t.Helper()
			n, e := second.open("web")
			assert.Equal(t, []int{now, ever}, []int{n, e})
		}
		expect("replace " + a1)
		first.send("web", add(a2))
		expect("add " + a2)
		watched(0, 0)

		first.send("web", gone)
		expect("replace " + b1)
		watched(1, 1)
		second.send("web", add(b2))
		expect("add " + b2)
		first.send("web", gone)
		first.send("web", remove(b1))
		expect([]string(nil)...) // nothing of first matters while it does not exist

		first.send("web", add(a2))
		expect("replace " + a2)
		watched(0, 1)
		second.send("web", add(a1))
		expect([]string(nil)...)

		first.send("web", gone)
		expect("replace " + a1 + " " + b1 + " " + b2)
		watched(1, 2)
		first.send("web", empty) // it exists
		expect("empty")
		watched(0, 2)
		cancel()
		expect("end")
	})
}

func TestFallbackKeepsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second script
		first.send("web", add(a1))
		second.change("web", func(*line) {})
		r := resolve.Fallback(&first, &second)
		ctx, cancel := context.WithCancel(t.Context())
		j := read(ctx, r, "web")
		assert.Equal(t, []string{"replace " + a1}, j.news())
		first.send("web", gone)
		assert.Empty(t, j.news())
		second.send("web", gone)
		assert.Equal(t, []string{"does not exist"}, j.news())
		second.send("web", add(b1))
		assert.Equal(t, []string{"add " + b1}, j.news())
		second.cut("web")
		ended := func(all string) []string { return []string{"connection reset", `resolve "web": stream ended`, all} }
		assert.Equal(t, ended("replace "+b1), j.news(), "and b1 stays: nothing more can be heard of second, so that is over")
		first.send("web", add(a1))
		assert.Equal(t, []string{"replace " + a1}, j.news())
		first.cut("web")
		assert.Equal(t, ended("replace "+a1), j.news(), "an error is not an answer")
		cancel()
		assert.Equal(t, []string{"end"}, j.news())
	})
}

// The current endpoints are those of first, which no resolver confirms.
func TestFallbackSecondEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second script
		first.send("web", add(a1))
		second.change("web", func(*line) {})
		ctx, cancel := context.WithCancel(t.Context())
		j := read(ctx, resolve.Fallback(&first, &second), "web")
		assert.Equal(t, []string{"replace " + a1}, j.news())
		first.send("web", gone)
		assert.Empty(t, j.news())
		second.cut("web")
		assert.Equal(t, []string{"connection reset", `resolve "web": stream ended`}, j.news())
		cancel()
		assert.Equal(t, []string{"end"}, j.news())
	})
}

func TestFallbackFirstUnresolvable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		s.send("web", add(a1))
		none := resolve.Func(never)
		ctx, cancel := context.WithCancel(t.Context())
		j := read(ctx, resolve.Fallback(none, &s), "web")
		assert.Equal(t, []string{"replace " + a1}, j.news())
		s.change("web", func(l *line) { l.reject = true })
		got := j.news()
		assert.Len(t, got, 2)
		assert.Equal(t, "end", got[1])
		assert.Contains(t, got[0], "fallback: never web: not a name that this resolver resolves\nweb: not a name")
		cancel()

		s = script{}
		s.send("web", gone)
		ctx, cancel = context.WithCancel(t.Context())
		j = read(ctx, resolve.Fallback(&s, none), "web")
		assert.Equal(t, []string{"does not exist"}, j.news(), "first may come to have it")
		s.send("web", add(a1))
		assert.Equal(t, []string{"replace " + a1}, j.news())
		cancel()
		assert.Equal(t, []string{"end"}, j.news())
	})
}

// In any order.
func TestFallbackBothUnresolvable(t *testing.T) {
	const neither = "fallback: web: not a name that this resolver resolves\nweb: not a name that this resolver resolves"
	reject := func(l *line) { l.reject = true }
	synctest.Test(t, func(t *testing.T) {
		var first, second script
		first.send("web", gone)
		second.change("web", reject)
		j := read(t.Context(), resolve.Fallback(&first, &second), "web")
		assert.Equal(t, []string{"does not exist"}, j.news(), "first may come to have it")
		first.change("web", reject)
		assert.Equal(t, []string{neither, "end"}, j.news())
	})
	synctest.Test(t, func(t *testing.T) {
		var first, second script
		first.send("web", gone)
		second.change("web", reject)
		j := read(t.Context(), resolve.Fallback(&first, &second), "web")
		assert.Equal(t, []string{"does not exist"}, j.news())
		first.send("web", add(a1))
		assert.Equal(t, []string{"replace " + a1}, j.news())
		// Second is resolved again when it is needed again, and may know the name by
		// then.
		second.change("web", func(l *line) { l.reject = false })
		second.send("web", add(b1))
		first.send("web", gone)
		assert.Equal(t, []string{"replace " + b1}, j.news())
		first.change("web", reject)
		assert.Empty(t, j.news(), "second has it")
		second.change("web", reject)
		assert.Equal(t, []string{neither, "end"}, j.news())
	})
}

// The recovery of first yields the endpoints of second, once they are known.
func TestFallbackFirstRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second script
		first.send("web", gone)
		second.change("web", func(*line) {})
		ctx, cancel := context.WithCancel(t.Context())
		j := read(ctx, resolve.Fallback(first.lasting(), second.lasting()), "web")
		blink := func() []string {
			first.cut("web")
			synctest.Wait()
			first.mend("web")
			time.Sleep(5 * time.Millisecond) // the back-off
			return j.news()
		}
		assert.Equal(t, []string{"connection reset"}, blink(), "second has not answered")
		second.send("web", add(b1))
		assert.Equal(t, []string{"replace " + b1}, j.news())
		second.send("web", add(b2))
		j.news()
		assert.Equal(t, []string{"connection reset", "replace " + b1 + " " + b2}, blink())
		first.send("web", gone)
		assert.Empty(t, j.news(), "once")
		second.cut("web")
		synctest.Wait()
		first.send("web", gone)
		assert.Equal(t, []string{"connection reset"}, j.news(), "of second, which is not back")
		cancel()
		assert.Equal(t, []string{"end"}, j.news())
	})
}
