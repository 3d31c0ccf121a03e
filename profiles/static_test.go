package profiles_test

import (
	"context"
	"iter"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/profiles"
)

// next pulls one profile.
func next(t *testing.T, pull func() (*profiles.Profile, error, bool)) *profiles.Profile {
	t.Helper()
	p, err, ok := pull()
	require.NoError(t, err)
	require.True(t, ok)
	return p
}

func TestStatic(t *testing.T) {
	var src profiles.Static
	a := &profiles.Profile{Name: "a"}
	src.Set("a:80", a)
	pullA, stopA := iter.Pull2(src.Watch(t.Context(), "a:80"))
	defer stopA()
	pullB, stopB := iter.Pull2(src.Watch(t.Context(), "b:80"))
	defer stopB()
	assert.Same(t, a, next(t, pullA))
	assert.Equal(t, &profiles.Profile{}, next(t, pullB), "one that was not set has the default")

	b := &profiles.Profile{Name: "b"}
	src.Set("b:80", b)
	assert.Same(t, b, next(t, pullB))
	src.Set("a:80", &profiles.Profile{Name: "missed"})
	src.Set("a:80", b)
	assert.Same(t, b, next(t, pullA), "a slow consumer gets the newest")
	src.Set("a:80", nil)
	assert.Equal(t, &profiles.Profile{}, next(t, pullA))
}

func TestStaticWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var src profiles.Static
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		var group sync.WaitGroup
		group.Go(func() {
			for p, err := range src.Watch(ctx, target) {
				assert.NoError(t, err)
				got = append(got, p.Name)
			}
		})
		synctest.Wait()
		same := &profiles.Profile{Name: "a"}
		for _, p := range []*profiles.Profile{same, same, {Name: "b"}} {
			src.Set(target, p)
			src.Set("other:80", p)
			synctest.Wait()
		}
		cancel()
		group.Wait()
		assert.Equal(t, []string{"", "a", "b"}, got, "an equal Set does not change the profile")
	})
}

func TestStaticWatchOfDoneContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range new(profiles.Static).Watch(ctx, target) {
		t.Error("nothing was to come")
	}
}
