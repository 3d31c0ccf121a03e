package kit

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/sd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// follow records the items of a stream, until ctx ends.
func follow(ctx context.Context, r resolve.Resolver, target string) *[]string {
	var got []string
	go func() {
		for u, err := range r.Resolve(ctx, target) {
			if err != nil {
				got = append(got, err.Error())
				continue
			}
			line := u.Kind.String()
			for _, e := range u.Endpoints {
				line += " " + e.Addr.String()
			}
			got = append(got, line)
		}
		got = append(got, "end")
	}()
	return &got
}

func TestFixedInstancer(t *testing.T) {
	r := New(func(string) (sd.Instancer, error) {
		return sd.FixedInstancer{"10.0.0.2:80", "10.0.0.1:80", "10.0.0.1:80"}, nil
	})
	for u, err := range r.Resolve(t.Context(), "web") {
		require.NoError(t, err)
		assert.Equal(t, resolve.Replace, u.Kind)
		require.Len(t, u.Endpoints, 2)
		assert.Equal(t, "10.0.0.1:80", u.Endpoints[0].Addr.String())
		break
	}
}

func TestStreamsShareInstancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := newRegistry()
		reg.say("web", sd.Event{Instances: []string{"10.0.0.1:80"}})
		r := New(reg.make)
		var cancels []context.CancelFunc
		var seen []*[]string
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			cancels = append(cancels, cancel)
			seen = append(seen, follow(ctx, r, "web"))
		}
		synctest.Wait()
		live, made := reg.count()
		assert.Equal(t, []int{1, 1}, []int{live, made}, "three streams share one")
		for n, cancel := range cancels {
			live, _ = reg.count()
			assert.Equal(t, 1, live, "as long as one is left")
			cancel()
			synctest.Wait()
			assert.Equal(t, []string{"replace 10.0.0.1:80", "end"}, *seen[n])
		}
		live, _ = reg.count()
		assert.Zero(t, live, "stopped with the last")
		for range r.Resolve(t.Context(), "web") {
			break
		}
		live, made = reg.count()
		assert.Equal(t, []int{0, 2}, []int{live, made}, "a later stream has its own, gone when it has left")
	})
}

func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := newRegistry()
		reg.say("web", sd.Event{Err: errAway})
		r := New(reg.make)
		ctx, cancel := context.WithCancel(t.Context())
		first := follow(ctx, r, "web")
		for _, e := range []sd.Event{
			{Instances: []string{"10.0.0.1:80"}},
			{Instances: []string{"10.0.0.1:80"}, Err: errAway},
			{Instances: []string{"10.0.0.2:80", "web:http", "10.0.0.3"}},
			{Instances: []string{"nothing"}},
			{},
		} {
			synctest.Wait()
			reg.say("web", e)
		}
		synctest.Wait()
		late := follow(ctx, r, "web")
		synctest.Wait()
		cancel()
		synctest.Wait()
		assert.Equal(t, []string{
			`kit: "web": registry is away`,
			"replace 10.0.0.1:80",
			`kit: "web": registry is away`,
			`kit: "web": instance "10.0.0.3": neither an address, a name with a port nor a URL: register one of these, or set kit.WithParse`,
			`kit: "web": instance "web:http": neither an address, a name with a port nor a URL: register one of these, or set kit.WithParse`,
			"replace 10.0.0.2:80",
			`kit: "web": instance "nothing": neither an address, a name with a port nor a URL: register one of these, or set kit.WithParse`,
			"empty", "end",
		}, *first)
		assert.Equal(t, []string{"empty", "end"}, *late, "an error that is over is not yielded")
	})
}

func TestNewInstancerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries, start := []time.Duration{}, time.Now()
		answers := []func() (sd.Instancer, error){
			func() (sd.Instancer, error) { return nil, errAway },
			func() (sd.Instancer, error) { return nil, nil },
			func() (sd.Instancer, error) { return sd.FixedInstancer{"10.0.0.1:80"}, nil },
		}
		r := New(func(string) (sd.Instancer, error) {
			tries = append(tries, time.Since(start))
			return answers[len(tries)-1]()
		}, WithBackoff(resolve.Backoff{Min: time.Second, Max: time.Minute}))
		ctx, cancel := context.WithCancel(t.Context())
		got := follow(ctx, r, "web")
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		assert.Equal(t, []time.Duration{0, time.Second, 3 * time.Second}, tries)
		assert.Equal(t, []string{
			`kit: "web": make an Instancer: registry is away`, `kit: "web": make an Instancer: it is nil`,
			"replace 10.0.0.1:80", "end",
		}, *got)
	})
}

// A newInstancer that hangs delays no stream, and its late Instancer is stopped.
func TestNewInstancerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg, gate := newRegistry(), make(chan struct{})
		r := New(func(target string) (sd.Instancer, error) { <-gate; return reg.make(target) })
		ctx, cancel := context.WithCancel(t.Context())
		got := follow(ctx, r, "web")
		synctest.Wait()
		cancel()
		synctest.Wait()
		assert.Equal(t, []string{"end"}, *got)
		close(gate)
		synctest.Wait()
		live, made := reg.count()
		assert.Equal(t, []int{0, 1}, []int{live, made})
	})
}

// A stream that ends while the Instancer sends must read on, to avoid a deadlock.
func TestLeaveDuringEvent(t *testing.T) {
	reg := newRegistry()
	reg.say("web", sd.Event{Instances: []string{"10.0.0.1:80"}})
	r := New(reg.make)
	for n := range 200 {
		for range r.Resolve(t.Context(), "web") {
			for m := range 5 {
				reg.say("web", sd.Event{Instances: []string{fmt.Sprintf("10.0.%d.%d:80", n, m)}})
			}
			break
		}
	}
	live, _ := reg.count()
	assert.Zero(t, live)
}
