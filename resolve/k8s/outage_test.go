package k8s

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gotower/gotower/resolve"
)

func always(err error) func(string, string) error { return func(string, string) error { return err } }

func forbidden(resource string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no RBAC policy matched"))
}

func TestFailureAdvice(t *testing.T) {
	web := object{"prod", "web"}
	for _, tt := range []struct {
		err          error
		kind         kind
		verb, reason string
	}{
		{forbidden("endpointslices"), endpointSlices, "list", "k8s: web.prod: list endpointslices: not allowed: " +
			"the client's account needs a Role in namespace prod with the verbs list and watch " +
			`on the resource endpointslices of the API group "discovery.k8s.io": `},
		{forbidden("services"), services, "watch", "k8s: web.prod: watch services: not allowed: " +
			"the client's account needs a Role in namespace prod with the verbs list and watch " +
			`on the resource services of the API group "": `},
		{apierrors.NewUnauthorized("x"), services, "list", "does not accept the client's credentials"},
		{apierrors.NewNotFound(schema.GroupResource{}, ""), endpointSlices, "list", "which Kubernetes has since 1.21"},
		{apierrors.NewResourceExpired("x"), services, "watch", "everything is listed again"},
		{apierrors.NewTooManyRequests("x", 1), services, "watch", "overloaded"},
		{context.DeadlineExceeded, services, "list", "k8s: web.prod: list services: no answer in 30s: "},
		{syscall.ECONNREFUSED, services, "list", "k8s: web.prod: list services: outer: connection refused"},
	} {
		err := failure(web, tt.kind, tt.verb, fmt.Errorf("outer: %w", tt.err))
		assert.ErrorContains(t, err, tt.reason)
		assert.ErrorIs(t, err, tt.err)
		assert.NotErrorIs(t, err, resolve.ErrUnresolvable)
	}
}

// The last set stays through an outage. Its end is one update, also without a change.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(svc("web", 80), slice("a", "web", 80, at("10.0.0.1")), slice("b", "web", 80, at("10.0.0.2")))
		f := follows(t, New(c.client), "web.default:80")
		defer f.stop()
		f.expect(t, "replace 10.0.0.1:80 10.0.0.2:80")

		for range 2 {
			time.Sleep(time.Minute)
			c.cut(nil, always(syscall.ECONNREFUSED))
			time.Sleep(time.Minute)
			synctest.Wait()
			require.NotEmpty(t, f.yielded)
			for _, yielded := range f.yielded {
				require.Contains(t, yielded, "connection refused")
			}
			late := follows(t, New(c.client), "web.default:80")
			synctest.Wait()
			require.ElementsMatch(t, []string{
				"k8s: web.default: list services: connection refused", "k8s: web.default: list endpointslices: connection refused",
			}, late.yielded)
			late.stop()
			f.yielded = nil
			c.heal()
			time.Sleep(2 * time.Minute)
			f.expect(t, "replace 10.0.0.1:80 10.0.0.2:80")
		}

		expired := apierrors.NewResourceExpired("too old")
		c.cut(expired, always(apierrors.NewServiceUnavailable("down")))
		c.put(slice("a", "web", 80, at("10.0.0.3")))
		c.remove(slice("b", "web", 80))
		c.put(slice("c", "web", 80, at("10.0.0.4")))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Contains(t, f.yielded[0], "everything is listed again")
		require.Contains(t, f.yielded[len(f.yielded)-1], "down")
		f.yielded = nil
		c.heal()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.NotEmpty(t, f.yielded)
		for _, yielded := range f.yielded { // the set, and that all is well again
			require.Equal(t, "replace 10.0.0.3:80 10.0.0.4:80", yielded)
		}
	})
}

// A stream that begins during an outage gets the last set and then the error.
func TestOutageLaterStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(svc("web", 80), slice("a", "web", 80, at("10.0.0.1")))
		r := New(c.client)
		first := follows(t, r, "web.default:80")
		defer first.stop()
		first.expect(t, "replace 10.0.0.1:80")
		c.cut(nil, always(syscall.ECONNREFUSED))
		time.Sleep(10 * time.Second)
		second := follows(t, r, "web.default:80")
		defer second.stop()
		synctest.Wait()
		require.Len(t, second.yielded, 3)
		require.Equal(t, "replace 10.0.0.1:80", second.yielded[0])
		require.Contains(t, second.yielded[1], "services: connection refused")
		require.Contains(t, second.yielded[2], "endpointslices: connection refused")
	})
}

// The error names the missing right, and the stream continues.
func TestOutageMissingRight(t *testing.T) {
	for _, resource := range []string{servicesResource, slicesResource} {
		for _, verb := range []string{"list", "watch"} {
			t.Run(verb+" "+resource, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(svc("web", 80), slice("a", "web", 80, at("10.0.0.1")))
					c.refuse = func(v, r string) error {
						if v == verb && r == resource {
							return forbidden(r)
						}
						return nil
					}
					f := follows(t, New(c.client), "web.default:80")
					defer f.stop()
					synctest.Wait()
					require.NotEmpty(t, f.errs)
					require.ErrorContains(t, f.errs[0], "k8s: web.default: "+verb+" "+resource+": not allowed")
					require.True(t, apierrors.IsForbidden(f.errs[0]))
					if verb == "watch" {
						require.Contains(t, f.yielded, "replace 10.0.0.1:80", "listed objects are yielded")
					}
					f.yielded = nil
					c.heal()
					time.Sleep(2 * time.Minute)
					synctest.Wait()
					require.Equal(t, "replace 10.0.0.1:80", f.yielded[len(f.yielded)-1])
				})
			})
		}
	}
}

// With client-go's backoff an outage of an hour takes few requests for each target.
func TestOutageRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(svc("web", 80), slice("a", "web", 80, at("10.0.0.1")))
		f := follows(t, New(c.client), "web.default:80")
		defer f.stop()
		f.expect(t, "replace 10.0.0.1:80")
		before := total(c)
		c.cut(nil, always(apierrors.NewInternalError(errors.New("etcd is down"))))
		time.Sleep(time.Hour)
		requests := total(c) - before
		require.Less(t, requests, 3600/5, "0.2 a second")
		require.Greater(t, requests, 3600/60)
	})
}

func total(c *cluster) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, of := range c.requests {
		n += of
	}
	return n
}

func TestWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.refuse = always(apierrors.NewServiceUnavailable("down"))
		f := follows(t, New(c.client, WithBackoff(resolve.Backoff{Min: time.Second, Max: 4 * time.Second})), "web.default:80")
		defer f.stop()
		for _, want := range []int{1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5} { // at 0, 1, 3, 7, 11 s
			synctest.Wait()
			require.Equal(t, want, c.count("list services"))
			time.Sleep(time.Second)
		}
	})
	require.Equal(t, newOptions(nil), newOptions([]Option{WithBackoff(resolve.Backoff{Min: 1}), WithBackoff(resolve.Backoff{})}))
}

// A list without an answer is an outage too, and a stream does not wait for it.
func TestOutageHangingList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		s := &source{list: silent, failed: func(_ string, err error) { assert.ErrorIs(t, err, context.DeadlineExceeded) }}
		start := time.Now()
		_, err := s.ListWithContext(t.Context(), metav1.ListOptions{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, listTimeout, time.Since(start))

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		s.failed = func(string, error) { t.Error("the end of the stream is not a failure") }
		_, err = s.ListWithContext(ctx, metav1.ListOptions{})
		require.ErrorIs(t, err, context.Canceled)

		ctx, cancel = context.WithCancel(t.Context())
		w := &watcher{state: newState(), object: object{"default", "web"}, cancel: cancel}
		w.reflect(ctx, services, s, &corev1.Service{}, w.serviceStore(), newOptions(nil).backoff)
		synctest.Wait()
		start = time.Now()
		w.stop()
		require.Zero(t, time.Since(start))
	})
}

// The backoff grows with hanging lists, too. Only a watch that lasted resets it.
func TestOutageHangingListsBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var lists []time.Duration
		s := &source{
			list: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
				lists = append(lists, time.Since(start))
				if n := len(lists); n != 4 && n < 6 {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return &corev1.ServiceList{}, nil
			},
			open: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				w := watch.NewFake()
				last := settled
				if len(lists) > 4 { // for ever
					return w, nil
				}
				time.AfterFunc(last, func() { w.Error(&apierrors.NewResourceExpired("old").ErrStatus) })
				return w, nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := &watcher{state: newState(), object: object{"default", "web"}, cancel: cancel}
		w.reflect(ctx, services, s, &corev1.Service{}, w.serviceStore(), resolve.Backoff{Min: 800 * time.Millisecond, Max: 30 * time.Second})
		time.Sleep(5 * time.Minute)
		w.stop()
		var gaps []time.Duration
		for i := range lists[1:] {
			gaps = append(gaps, lists[i+1]-lists[i])
		}
		require.Equal(t, []time.Duration{
			30*time.Second + 800*time.Millisecond, 30*time.Second + 1600*time.Millisecond, 30*time.Second + 3200*time.Millisecond,
			10*time.Second + 800*time.Millisecond, // after a watch that lasted
			30*time.Second + 1600*time.Millisecond,
		}, gaps)
	})
}
