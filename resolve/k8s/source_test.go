package k8s

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A Reflector does not wait for its list. The last stream does, so that no request
// remains after it.
func TestSourceWaitsForList(t *testing.T) {
	var asked atomic.Bool
	begun := make(chan struct{})
	s := &source{list: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
		asked.Store(true)
		close(begun)
		<-ctx.Done()
		<-time.After(10 * time.Millisecond) // it closes its connection
		asked.Store(false)
		return nil, ctx.Err()
	}}
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{state: newState(), object: object{"default", "web"}, cancel: cancel}
	w.reflect(ctx, services, s, &corev1.Service{}, w.serviceStore(), newOptions(nil).backoff)
	select {
	case <-begun:
	case <-time.After(time.Minute):
		t.Error("no list begins")
	}
	w.stop()
	require.False(t, asked.Load())
}

// After a long outage the next one is a new outage.
func TestSourceSecondOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(svc("web", 80), slice("a", "web", 80, at("10.0.0.1")))
		f := follows(t, New(c.client), "web.default:80")
		defer f.stop()
		time.Sleep(settled)
		c.cut(nil, always(syscall.ECONNREFUSED))
		time.Sleep(20 * time.Second)
		c.heal()
		for end := time.Now().Add(time.Hour); c.open() < 2 && time.Now().Before(end); {
			time.Sleep(time.Second)
		}
		require.Equal(t, 2, c.open())
		time.Sleep(settled)
		c.cut(nil, always(syscall.ECONNREFUSED))
		synctest.Wait()
		c.heal()
		time.Sleep(2 * time.Second)
		require.Equal(t, 2, c.open())
	})
}

// A watch that ends at once without an event is an error, because the set is as old as
// the last list.
func TestSourceShortWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(svc("web", 80), slice("a", "web", 80, at("10.0.0.1")))
		f := follows(t, New(c.client), "web.default:80")
		defer f.stop()
		f.expect(t, "replace 10.0.0.1:80")
		c.cut(nil, nil)
		synctest.Wait()
		require.ElementsMatch(t, []string{
			"k8s: web.default: watch services: it ended at once without an event",
			"k8s: web.default: watch endpointslices: it ended at once without an event",
		}, f.yielded)
		f.yielded = nil
		c.heal()
		time.Sleep(10 * time.Second)
		f.expect(t, "replace 10.0.0.1:80")
		c.cut(nil, nil) // as servers do from time to time
		f.expect(t)
	})
}
