package k8s

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// follower records the items of a stream, in a bubble.
type follower struct {
	cancel  context.CancelFunc
	ended   chan struct{}
	yielded []string
	errs    []error
}

func follows(t *testing.T, r resolve.Resolver, target string) *follower {
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		for u, err := range r.Resolve(ctx, target) {
			if err != nil {
				f.yielded = append(f.yielded, err.Error())
				f.errs = append(f.errs, err)
				continue
			}
			f.yielded = append(f.yielded, words(u))
		}
	}()
	return f
}

// expect compares the items since the last call, after all goroutines wait.
func (f *follower) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	require.Equal(t, want, f.yielded)
	f.yielded = nil
}

// stop ends the stream and waits for that.
func (f *follower) stop() {
	f.cancel()
	<-f.ended
}
