package kit

import (
	"testing"
	"testing/synctest"

	"github.com/go-kit/kit/sd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve/static"
)

func TestInstancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := static.New(nil)
		web, err := static.Endpoints("10.0.0.2:80", "[fd00::1]:80", "10.0.0.1:80")
		require.NoError(t, err)
		i := Instancer(t.Context(), r, "web")
		slow, quick := make(chan sd.Event), make(chan sd.Event)
		i.Register(slow)
		i.Register(quick)
		i.Register(quick)
		assert.Equal(t, sd.Event{Instances: []string{}}, <-quick)
		r.Set("web", web...)
		assert.Equal(t, sd.Event{Instances: []string{"10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80"}}, <-quick)
		synctest.Wait()
		i.Deregister(quick)
		i.Deregister(quick)
		close(quick) // nothing is sent any more
		r.Delete("web")
		synctest.Wait()
		<-slow // this one was under way
		assert.Equal(t, sd.Event{Instances: []string{}}, <-slow)
		r.Set("web", web...)
		synctest.Wait()
		i.Stop() // though slow does not read
		i.Stop()
		i.Register(quick)
	})
}

func TestInstancerErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := newRegistry()
		reg.say("web", sd.Event{Instances: []string{"10.0.0.1:80"}})
		i := Instancer(t.Context(), New(reg.make), "web")
		defer i.Stop()
		events := make(chan sd.Event, 9)
		i.Register(events)
		for _, e := range []sd.Event{{Err: errAway}, {Instances: []string{"10.0.0.1:80"}}} {
			synctest.Wait()
			reg.say("web", e)
		}
		synctest.Wait()
		i.Deregister(events)
		close(events)
		assert.Equal(t, []string{"10.0.0.1:80"}, (<-events).Instances)
		require.ErrorIs(t, (<-events).Err, errAway)
		assert.Equal(t, []string{"10.0.0.1:80"}, (<-events).Instances, "the same set again, as go-kit asks for")
		assert.Empty(t, events)
	})
}
