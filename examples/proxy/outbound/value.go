package outbound

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/profiles"
)

// profileValue is what requests and connections to a target need of its profile. It is the Value of the profile and
// of its backends. Successive profiles have the same one, unless the target's name or the policy's labels change.
type profileValue struct {
	*meters.Routes

	name      string   // the result of canonicalName
	canonical []string // l5d-dst-canonical; nil if the target has no name
}

// profileSource is the source of a target's profiles. It sets the Values in those of another source.
type profileSource struct {
	profiles.Source

	out      *Outbound
	target   string
	balanced *backends     // the balancers of the profiles' backends
	first    *profileValue // until the first profile, and without a profile
}

// profileSource returns the source of target's profiles, which come from source.
func (o *Outbound) profileSource(target string, source profiles.Source, balanced *backends) *profileSource {
	s := &profileSource{Source: source, out: o, target: target, balanced: balanced}
	s.first = s.next(nil, new(profiles.Profile))
	return s
}

// of returns the profileValue that is the Value of a profile or backend. It returns the first one for a nil value.
func (s *profileSource) of(value any) *profileValue {
	if d, ok := value.(*profileValue); ok {
		return d
	}
	return s.first
}

// next returns the profileValue for the profile p. That is old if it has not changed.
func (s *profileSource) next(old *profileValue, p *profiles.Profile) *profileValue {
	name := canonicalName(p, s.target)
	dst := cmp.Or(name, s.target)
	if old != nil && old.name == name && old.Is(dst, p.Policy) {
		return old
	}
	d := &profileValue{Routes: s.out.Meters.Routes(dst, p.Policy), name: name}
	if name != "" {
		d.canonical = []string{name}
	}
	return d
}

// Watch yields copies of the source's profiles with Values.
func (s *profileSource) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		d := s.first
		var latest *profiles.Profile
		for p, err := range s.Source.Watch(ctx, target) {
			if err == nil && p != nil {
				parent := d.Parent()
				d = s.next(d, p)
				// With the same parent, backends whose settings changed keep their balancers.
				if d.Parent() == parent {
					s.balanced.update(parent, latest, p)
				}
				latest = p
				p = d.annotate(p)
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

// annotate returns a copy of p with d as its Value and that of its backends, and with the meters of its routes as
// theirs.
func (d *profileValue) annotate(p *profiles.Profile) *profiles.Profile {
	q := *p
	q.Value = d
	q.Routes = slices.Clone(p.Routes)
	d.Attach(q.Routes)
	for i := range q.Routes {
		q.Routes[i].Backends = slices.Clone(q.Routes[i].Backends)
		for j := range q.Routes[i].Backends {
			q.Routes[i].Backends[j].Value = d
		}
	}
	return &q
}

// countsOf returns the meters that annotate has set in route.
func countsOf(route profiles.Route) *meters.Route {
	return route.Value.(*meters.Route)
}

// backendAt returns the backend with the given authority of a profile without Values.
func backendAt(authority string) *profiles.Backend {
	return &profiles.Backend{Target: profiles.Target{Authority: authority}}
}
