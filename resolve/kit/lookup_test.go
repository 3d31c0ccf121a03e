package kit

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/sd"
	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/resolve"
)

// zone is what a scripted WithLookup finds, and when it was asked.
type zone struct {
	mu    sync.Mutex
	hosts map[string][]netip.Addr
	start time.Time
	asked []time.Duration
}

func newZone() *zone { return &zone{hosts: make(map[string][]netip.Addr), start: time.Now()} }

func (z *zone) set(host string, ips ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.hosts[host] = nil
	for _, ip := range ips {
		z.hosts[host] = append(z.hosts[host], netip.MustParseAddr(ip))
	}
}

func (z *zone) fail(host string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	delete(z.hosts, host)
}

func (z *zone) times() []time.Duration {
	z.mu.Lock()
	defer z.mu.Unlock()
	return slices.Clone(z.asked)
}

func (z *zone) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked = append(z.asked, time.Since(z.start))
	if ips, ok := z.hosts[host]; ok {
		return ips, nil
	}
	return nil, errors.New("SERVFAIL")
}

// A registry that does not change says a thing once, whatever becomes of the
// look-up then.
func TestALookUpThatFailedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZone()
		r := New(func(string) (sd.Instancer, error) { return sd.FixedInstancer{"web:80"}, nil },
			WithLookup(z.lookup), WithBackoff(resolve.Backoff{Min: time.Second, Max: time.Minute}))
		ctx, cancel := context.WithCancel(t.Context())
		got := follow(ctx, r, "web")
		time.Sleep(4 * time.Second)
		z.set("web") // no address is no answer either
		time.Sleep(8 * time.Second)
		z.set("web", "0.0.0.0") // nor is that
		time.Sleep(16 * time.Second)
		z.set("web", "10.0.0.2", "10.0.0.1")
		time.Sleep(24 * time.Hour)
		cancel()
		synctest.Wait()
		assert.Equal(t, []string{`kit: "web": instance "web:80": look up: SERVFAIL`, "replace 10.0.0.1:80 10.0.0.2:80", "end"}, *got)
		s := time.Second
		assert.Equal(t, []time.Duration{0, s, 3 * s, 7 * s, 15 * s, 31 * s}, z.times(), "after a back-off, and never again when it is well")
	})
}

// What the names that are well have become meanwhile is news, and what they
// are still is none, in whatever order it is found.
func TestALookUpThatGoesOnFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZone()
		z.set("a", "10.0.0.1", "10.0.0.2")
		reg := newRegistry()
		reg.say("web", sd.Event{Instances: []string{"a:80", "b:80"}})
		r := New(reg.make, WithLookup(z.lookup), WithBackoff(resolve.Backoff{Min: time.Second, Max: time.Second}))
		ctx, cancel := context.WithCancel(t.Context())
		got := follow(ctx, r, "web")
		hour := func(does func()) {
			synctest.Wait()
			does()
			time.Sleep(time.Hour)
		}
		hour(func() { z.set("a", "10.0.0.2", "10.0.0.1") })
		hour(func() { z.set("a", "10.0.0.3") })
		hour(func() { z.fail("a") })
		hour(func() { reg.say("web", sd.Event{Err: errAway}) })
		hour(func() { z.set("b", "10.0.0.4") }) // while the registry is away
		hour(func() { reg.say("web", sd.Event{Instances: []string{"b:80"}}) })
		asked := len(z.times())
		hour(func() {})
		assert.Len(t, z.times(), asked, "nothing is amiss any more")
		cancel()
		synctest.Wait()
		assert.Equal(t, []string{
			`kit: "web": instance "b:80": look up: SERVFAIL`,
			"replace 10.0.0.1:80 10.0.0.2:80",
			"replace 10.0.0.3:80",
			`kit: "web": instance "a:80": look up: SERVFAIL`,
			"replace 10.0.0.3:80", // the error is over: what was known holds
			`kit: "web": registry is away`,
			"replace 10.0.0.3:80 10.0.0.4:80",
			`kit: "web": registry is away`, // still, and it says that once
			"replace 10.0.0.4:80", "end",
		}, *got)
	})
}

// What a look-up finds says nothing of the registry: to a Keeper, that is as long
// away as it was.
func TestALookUpIsNoAnswerOfTheRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZone()
		z.set("a", "10.0.0.1")
		reg := newRegistry()
		reg.say("web", sd.Event{Instances: []string{"a:80", "b:80"}})
		r := New(reg.make, WithLookup(z.lookup), WithBackoff(resolve.Backoff{Min: time.Second, Max: time.Second}))
		keeper := resolve.ServeStale(r, resolve.StalePolicy{MaxAge: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		got := follow(ctx, keeper, "web")
		time.Sleep(time.Minute + time.Second/2) // between two look-ups
		reg.say("web", sd.Event{Err: errAway})
		synctest.Wait()
		z.set("b", "10.0.0.2")
		time.Sleep(30 * time.Minute)
		list := keeper.Status()
		assert.Len(t, list, 1)
		assert.ErrorIs(t, list[0].Err, errAway)
		time.Sleep(time.Hour)
		cancel()
		synctest.Wait()
		assert.Equal(t, "empty", (*got)[len(*got)-2], "%q", *got)
	})
}

// Errors of the registry, however many, do not put a look-up off, and an event
// that brings no new trouble does not hurry it.
func TestEventsAndTheBackoffOfALookUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZone()
		reg := newRegistry()
		reg.say("web", sd.Event{Instances: []string{"a:80"}})
		r := New(reg.make, WithLookup(z.lookup), WithBackoff(resolve.Backoff{Min: 10 * time.Second, Max: time.Hour}))
		ctx, cancel := context.WithCancel(t.Context())
		follow(ctx, r, "web")
		synctest.Wait()
		for range 13 {
			reg.say("web", sd.Event{Err: errAway})
			time.Sleep(time.Second)
		}
		s := time.Second
		assert.Equal(t, []time.Duration{0, 10 * s}, z.times())
		reg.say("web", sd.Event{Instances: []string{"a:80"}}) // reads at 13 s, and again 40 s later
		time.Sleep(41 * time.Second)
		assert.Equal(t, []time.Duration{0, 10 * s, 13 * s, 53 * s}, z.times())
		reg.say("web", sd.Event{Instances: []string{"a:80", "b:80"}}) // b is new: at 54 s, and 10 s later
		time.Sleep(11 * time.Second)
		assert.Equal(t, []time.Duration{54 * s, 54 * s, 64 * s, 64 * s}, z.times()[4:])
		cancel()
		synctest.Wait()
	})
}

// What WithLookup does not decide is not looked up again.
func TestWhatNoLookUpMendsIsNotReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, text := range []string{"web", "0.0.0.0:80", "web:http"} {
			r := reader{options: newOptions([]Option{WithLookup(newZone().lookup)})}
			r.event(t.Context(), sd.Event{Instances: []string{text}})
			assert.Nil(t, r.again, text)
		}
		without := reader{options: newOptions(nil)}
		without.event(t.Context(), sd.Event{Instances: []string{"web:80"}})
		assert.Nil(t, without.again)
	})
}
