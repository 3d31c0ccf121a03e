package k8s

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/resolve"
)

// model is what slices say of addresses: "ready", "draining" or "unready".
type model struct {
	exists bool
	slices map[string]map[string]string
}

// wants is the answer by the rule in the package's documentation.
func (m *model) wants() (resolve.State, map[netip.AddrPort]bool) {
	if !m.exists {
		return resolve.StateDoesNotExist, nil
	}
	for _, condition := range []string{"ready", "draining"} {
		found := map[netip.AddrPort]bool{}
		for _, s := range m.slices {
			for address, is := range s {
				if is == condition {
					found[netip.AddrPortFrom(netip.MustParseAddr(address), 8080)] = true
				}
			}
		}
		if len(found) > 0 {
			return resolve.StateExists, found
		}
	}
	return resolve.StateEmpty, nil
}

// After any order of events a stream has the endpoints of the current slices.
func TestStreamModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := model{slices: map[string]map[string]string{}}
		w := &watcher{state: newState(), object: object{"default", "web"}}
		services, slices := w.serviceStore(), w.sliceStore()
		o := newOptions(nil)
		v := view{options: &o, target: target{w.object, portRef{number: 80}}}
		var at position
		var set resolve.Set
		require.NoError(t, services.Replace(nil, ""))
		require.NoError(t, slices.Replace(nil, ""))
		draw := func(name string) *discoveryv1.EndpointSlice {
			m.slices[name] = map[string]string{}
			for n := range 4 {
				if is := rapid.SampledFrom([]string{"", "ready", "draining", "unready"}).Draw(t, "is"); is != "" {
					m.slices[name][fmt.Sprint("10.0.0.", n)] = is
				}
			}
			return m.object(name)
		}
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		t.Repeat(map[string]func(*rapid.T){
			"service comes": func(t *rapid.T) { m.exists = true; require.NoError(t, services.Add(svc("web", 80))) },
			"service goes":  func(t *rapid.T) { m.exists = false; require.NoError(t, services.Delete(svc("web"))) },
			"slice":         func(t *rapid.T) { require.NoError(t, slices.Update(draw(name.Draw(t, "name")))) },
			"slice goes": func(t *rapid.T) {
				gone := name.Draw(t, "name")
				delete(m.slices, gone)
				require.NoError(t, slices.Delete(slice(gone, "web", 8080)))
			},
			"listed again": func(t *rapid.T) {
				m.slices = map[string]map[string]string{}
				require.NoError(t, slices.Replace([]any{draw("b"), draw("d")}, ""))
			},
			"": func(t *rapid.T) {
				for _, i := range v.items(w.changesSince(&at)) {
					require.NoError(t, i.err)
					set.Apply(i.update)
				}
				state, want := m.wants()
				require.Equal(t, state, set.State())
				require.Len(t, set.Endpoints(), len(want))
				for _, e := range set.Endpoints() {
					require.True(t, want[e.Addr], e.Addr)
				}
			},
		})
	})
}

func (m *model) object(name string) *discoveryv1.EndpointSlice {
	s := slice(name, "web", 8080)
	for address, is := range m.slices[name] {
		change := map[string]func(*discoveryv1.Endpoint){
			"ready": func(*discoveryv1.Endpoint) {}, "draining": draining, "unready": unready,
		}[is]
		s.Endpoints = append(s.Endpoints, at(address, change))
	}
	return s
}

// A thousand endpoints in ten slices, of which one changes.
func BenchmarkChange(b *testing.B) {
	w := &watcher{state: newState(), object: object{"default", "web"}}
	require.NoError(b, w.serviceStore().Add(svc("web", 80)))
	slices := w.sliceStore()
	var last *discoveryv1.EndpointSlice
	for s := range 10 {
		last = slice(fmt.Sprint("web-", s), "web", 8080)
		for n := range 100 {
			last.Endpoints = append(last.Endpoints, at(fmt.Sprintf("10.0.%d.%d", s, n), func(e *discoveryv1.Endpoint) {
				e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("web-%d-%d", s, n)}
			}))
		}
		require.NoError(b, slices.Add(last))
	}
	o := newOptions(nil)
	v := view{options: &o, target: target{w.object, portRef{number: 80}}}
	var at position
	require.Len(b, v.items(w.changesSince(&at)), 1)
	change := []func(*discoveryv1.Endpoint){unready, func(e *discoveryv1.Endpoint) { e.Conditions.Ready = nil }}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		change[n%2](&last.Endpoints[0])
		if slices.Update(last) != nil || len(v.items(w.changesSince(&at))) != 1 {
			b.Fatal("no news")
		}
	}
}
