package k8s

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gotower/gotower/resolve"
)

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		f := follows(t, New(c.client), "web.default:80")
		defer f.stop()
		f.expect(t, "does not exist")
		c.put(svc("web", 80))
		f.expect(t, "empty")
		c.put(slice("a", "web", 8080, at("10.0.0.1")))
		f.expect(t, "replace 10.0.0.1:8080")
		c.put(slice("b", "web", 8080, at("10.0.0.2"), at("10.0.0.3", unready)))
		f.expect(t, "replace 10.0.0.1:8080 10.0.0.2:8080")
		c.put(slice("b", "web", 8080, at("10.0.0.2", draining), at("10.0.0.3")))
		f.expect(t, "replace 10.0.0.1:8080 10.0.0.3:8080")

		// From one slice to the other, and back, by way of both and by way of none.
		c.put(slice("b", "web", 8080, at("10.0.0.3"), at("10.0.0.1")))
		f.expect(t)
		c.remove(slice("a", "web", 8080))
		f.expect(t)
		c.put(slice("b", "web", 8080, at("10.0.0.3")))
		f.expect(t, "replace 10.0.0.3:8080")
		c.put(slice("a", "web", 8080, at("10.0.0.1")))
		f.expect(t, "replace 10.0.0.1:8080 10.0.0.3:8080")

		// In another order, and with another resource version, it is the same.
		c.put(slice("b", "web", 8080, at("10.0.0.1"), at("10.0.0.3")))
		f.expect(t)

		// The Service may go before its slices do, and come back before they are gone.
		c.remove(svc("web"))
		f.expect(t, "does not exist")
		c.remove(slice("a", "web", 8080))
		f.expect(t)
		c.put(svc("web", 80))
		f.expect(t, "replace 10.0.0.1:8080 10.0.0.3:8080")
		c.remove(slice("b", "web", 8080))
		f.expect(t, "empty")
	})
}

func TestStreamPortChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(svc("web", 80), slice("a", "web", 8080, at("10.0.0.1")))
		r := New(c.client)
		number, name := follows(t, r, "web.default:81"), follows(t, r, "web.default:p1")
		defer number.stop()
		defer name.stop()
		const no, has = "k8s: web.default: the Service has no TCP port ", "; it has 80"
		number.expect(t, no+"81"+has, "does not exist")
		name.expect(t, no+`"p1"`+has, "does not exist")

		c.put(svc("web", 80, 81))
		number.expect(t, "empty")
		name.expect(t, "empty")
		s := slice("a", "web", 8081, at("10.0.0.1"))
		s.Ports[0].Name = new("p1")
		c.put(s)
		number.expect(t, "replace 10.0.0.1:8081")
		name.expect(t, "replace 10.0.0.1:8081")

		c.put(svc("web", 80))
		number.expect(t, no+"81"+has, "does not exist")
		name.expect(t, no+`"p1"`+has, "does not exist")
	})
}

// A problem is yielded once, and again when it returns.
func TestStreamProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := slice("names", "web", 80, at("db.example.org"))
		names.AddressType = discoveryv1.AddressTypeFQDN
		c := newCluster(svc("web", 80), names, slice("a", "web", 80, at("10.0.0.1")))
		f := follows(t, New(c.client), "web.default:80")
		defer f.stop()
		const news = "k8s: web.default: EndpointSlice names is ignored: " +
			"its addressType is FQDN, use IP addresses"
		f.expect(t, news, "replace 10.0.0.1:80")
		c.put(slice("a", "web", 80, at("10.0.0.2")))
		f.expect(t, "replace 10.0.0.2:80")
		c.remove(names)
		f.expect(t)
		c.put(names)
		f.expect(t, news, "replace 10.0.0.2:80")
	})
}

// A problem does not make ServeStale drop the other endpoints.
func TestStreamProblemsWithServeStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(svc("web", 80), slice("a", "web", 80, at("10.0.0.1")))
		keeper := resolve.ServeStale(New(c.client), resolve.StalePolicy{MaxAge: time.Minute})
		f := follows(t, keeper, "web.default:80")
		defer f.stop()
		f.expect(t, "replace 10.0.0.1:80")
		c.put(slice("b", "web", 80, at("a name")))
		f.expect(t, `k8s: web.default: EndpointSlice b: the endpoint "a name" is ignored: not an IP address`,
			"replace 10.0.0.1:80")
		time.Sleep(time.Hour)
		f.expect(t)
		require.Zero(t, keeper.Status()[0].Age)
	})
}

// Objects of other Services and namespaces are not used.
func TestStreamOtherServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := slice("c", "web", 80, at("10.0.0.3"))
		far.Namespace = "other"
		c := newCluster(svc("web", 80), svc("books", 80), slice("a", "web", 80, at("10.0.0.1")),
			slice("b", "books", 80, at("10.0.0.2")), far)
		r := New(c.client, WithNamespace("default"))
		web, books := follows(t, r, "web:80"), follows(t, r, "books:80")
		defer web.stop()
		defer books.stop()
		web.expect(t, "replace 10.0.0.1:80")
		books.expect(t, "replace 10.0.0.2:80")
		c.put(slice("b", "web", 80, at("10.0.0.2"))) // it changes hands
		web.expect(t, "replace 10.0.0.1:80 10.0.0.2:80")
		books.expect(t, "empty")
		c.remove(svc("books"))
		web.expect(t)
		books.expect(t, "does not exist")
	})
}

// A watch without selectors, as that of client-go's fake, has the same result.
func TestStoreOtherServices(t *testing.T) {
	w := &watcher{state: newState(), object: object{"default", "web"}}
	services, found := w.serviceStore(), w.sliceStore()
	require.NoError(t, services.Replace([]any{svc("books", 80), svc("web", 80)}, "1"))
	require.NoError(t, found.Replace([]any{slice("b", "books", 80, at("10.0.0.2")), slice("a", "web", 80, at("10.0.0.1"))}, "1"))
	expect(t, "replace 10.0.0.1:80", w.now, portRef{number: 80})
	require.NoError(t, found.Add(slice("b", "books", 80)))
	require.NoError(t, found.Update(slice("a", "books", 80, at("10.0.0.1")))) // it changes hands
	expect(t, "empty", w.now, portRef{number: 80})
	require.NoError(t, services.Update(&corev1.Pod{}))
	require.NoError(t, services.Delete(svc("books")))
	expect(t, "empty", w.now, portRef{number: 80})
	require.NoError(t, services.Delete(svc("web")))
	expect(t, "does not exist", w.now, portRef{number: 80})
	require.Error(t, found.Delete("not an object"))
}

func TestInvalidTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		f := follows(t, New(c.client), "web:80")
		<-f.ended
		f.expect(t, `k8s: target "web:80": not a name that this resolver resolves: `+
			"missing namespace: write name.namespace, or use WithNamespace")
		require.Empty(t, c.requests)
	})
}

// A Service is not empty before its slices are known.
func TestStreamLateSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(svc("web", 80), slice("a", "web", 80, at("10.0.0.1")))
		c.refuseAs(func(_, resource string) error {
			if resource == slicesResource {
				return apierrors.NewServiceUnavailable("not yet")
			}
			return nil
		})
		f := follows(t, New(c.client), "web.default:80")
		defer f.stop()
		f.expect(t, "k8s: web.default: list endpointslices: not yet")
		c.heal()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.NotEmpty(t, f.yielded)
		for _, yielded := range f.yielded { // of the list, and perhaps again of the watch
			require.Equal(t, "replace 10.0.0.1:80", yielded)
		}

		none := follows(t, New(c.client), "none.default:80")
		defer none.stop()
		none.expect(t, "does not exist")
	})
}
