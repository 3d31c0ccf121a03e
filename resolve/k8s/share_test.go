package k8s

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// reflectors counts the goroutines that read the API.
func reflectors() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "resolve/k8s.follow(")
}

func TestStreamsShareWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(svc("web", 80, 81), slice("a", "web", 80), svc("books", 80))
		r := New(c.client)
		require.Zero(t, reflectors())
		var all []*follower
		for _, target := range []string{"web.default:80", "web.default:80", "web.default:p1", "web.default.svc.cluster.local:81"} {
			f := follows(t, r, target)
			f.expect(t, "empty")
			all = append(all, f)
			require.Equal(t, 2, c.open())
			require.Equal(t, 2, reflectors())
		}
		require.Equal(t, map[string]int{
			"list services": 1, "watch services": 1, "list endpointslices": 1, "watch endpointslices": 1,
		}, c.requests)
		books := follows(t, r, "books.default:80")
		books.expect(t, "empty")
		require.Equal(t, 4, c.open())

		for _, f := range all {
			require.Equal(t, 4, c.open())
			f.stop()
		}
		require.Equal(t, 2, c.open())
		require.Equal(t, 2, reflectors())
		books.stop()
		require.Zero(t, c.open())
		require.Zero(t, reflectors())
		require.Zero(t, r.watchers.Len())

		again := follows(t, r, "web.default:80")
		again.expect(t, "empty")
		require.Equal(t, 3, c.count("list services"))
		again.stop()
		require.Zero(t, c.open())
	})
}

func TestDoneContext(t *testing.T) {
	c := newCluster()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range New(c.client).Resolve(ctx, "web.default:80") {
		t.Error("an item after the context was done")
	}
	require.Empty(t, c.requests)
}

// Streams that begin and end concurrently get an answer each and leak no watch.
func TestStreamsConcurrent(t *testing.T) {
	c := newCluster(svc("web", 80), slice("a", "web", 80, at("10.0.0.1")))
	r := New(c.client)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 50 {
				answers := 0
				for u, err := range r.Resolve(t.Context(), "web.default:80") {
					assert.NoError(t, err)
					assert.Equal(t, "replace 10.0.0.1:80", words(u))
					answers++
					break
				}
				assert.Equal(t, 1, answers)
				runtime.Gosched()
			}
		})
	}
	wait.Wait()
	require.Zero(t, c.open())
	require.Zero(t, r.watchers.Len())
}

// A consumer may change the slice of its update.
func TestUpdateOwnership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(svc("web", 80), slice("a", "web", 80, at("10.0.0.1"), at("10.0.0.2")))
		r := New(c.client)
		f := follows(t, r, "web.default:80")
		defer f.stop()
		f.expect(t, "replace 10.0.0.1:80 10.0.0.2:80")
		for u := range r.Resolve(t.Context(), "web.default:80") {
			clear(u.Endpoints)
			break
		}
		c.put(slice("b", "web", 80, at("10.0.0.2")))
		f.expect(t) // nothing new
		late := follows(t, r, "web.default:80")
		defer late.stop()
		late.expect(t, "replace 10.0.0.1:80 10.0.0.2:80")
	})
}
