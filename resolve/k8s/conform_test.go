package k8s

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
)

func nameOf(target string) string { return target[:strings.IndexByte(target, '.')] }

// set makes one slice of the endpoints that speak HTTP/2, and one of the others.
func (c *cluster) set(target string, endpoints ...resolve.Endpoint) {
	name := nameOf(target)
	c.put(svc(name, 80))
	h2, other := slice(name+"-h2", name, 8080), slice(name+"-other", name, 8080)
	h2.Ports[0].AppProtocol = new(h2c)
	for _, e := range endpoints {
		s := other
		if e.Protocol == resolve.H2 {
			s = h2
		}
		s.Endpoints = append(s.Endpoints, at(e.Addr.Addr().String(), func(to *discoveryv1.Endpoint) {
			to.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: e.Labels["pod"]}
			to.Zone = new(e.Labels["zone"])
			to.NodeName = new(e.Labels["node"])
		}))
	}
	// An endpoint that stops to speak HTTP/2 is in both slices for a while, as when
	// it is moved by Kubernetes, and not in none.
	c.put(other)
	c.put(h2)
}

func (c *cluster) interrupt(_ string, meanwhile func()) {
	c.cut(apierrors.NewResourceExpired("too old"), func(string, string) error {
		return apierrors.NewServiceUnavailable("down")
	})
	meanwhile()
	c.heal()
}

// withoutService takes the label "service" away, which the suite's endpoints
// cannot have: it is not the same for its two targets.
func withoutService(t testing.TB, r resolve.Resolver) resolve.Resolver {
	return resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			for u, err := range r.Resolve(ctx, target) {
				for i := range u.Endpoints {
					m := maps.Clone(u.Endpoints[i].Labels)
					assert.Equal(t, nameOf(target), m["service"])
					delete(m, "service")
					u.Endpoints[i].Labels = m
				}
				if !yield(u, err) {
					return
				}
			}
		}
	})
}

func TestConforms(t *testing.T) {
	resolvetest.Run(t, resolvetest.Subject{
		New: func(t testing.TB) (resolve.Resolver, resolvetest.Source) {
			c := newCluster()
			r := New(c.client, WithBackoff(resolve.Backoff{Min: time.Millisecond, Max: 4 * time.Millisecond}))
			return withoutService(t, r), resolvetest.Source{
				Set:          c.set,
				Empty:        func(target string) { c.set(target) },
				DoesNotExist: func(target string) { c.remove(svc(nameOf(target))) },
				Interrupt:    c.interrupt,
			}
		},
		Endpoint: func(n int) resolve.Endpoint {
			return resolve.Endpoint{
				ID: resolve.ID{Addr: netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:8080", n)), Protocol: resolve.H2},
				Labels: map[string]string{
					"namespace": "default", "pod": fmt.Sprint("pod-", n), "zone": "a", "node": "n1",
				},
				Locality: "a",
			}
		},
		Relabel: func(e resolve.Endpoint) resolve.Endpoint {
			e.Labels = map[string]string{"namespace": "default", "pod": "other", "zone": "b", "node": "n2"}
			e.Locality = "b"
			return e
		},
		Rekey: func(e resolve.Endpoint) resolve.Endpoint {
			e.Protocol = resolve.Unknown
			return e
		},
	})
}
