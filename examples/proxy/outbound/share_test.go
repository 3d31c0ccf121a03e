package outbound

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/profiles"
)

type update struct {
	profile *profiles.Profile
	err     error
}

// scripted is a source of the updates that the test sends.
type scripted struct {
	updates chan update
	watches int
}

func (s *scripted) Watch(ctx context.Context, _ string) iter.Seq2[*profiles.Profile, error] {
	s.watches++
	return func(yield func(*profiles.Profile, error) bool) {
		for {
			select {
			case n := <-s.updates:
				if !yield(n.profile, n.err) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// Several watches of a profile share one watch of the source.
func TestSharedProfileWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		source := &scripted{updates: make(chan update)}
		first := share(source)
		watch := func(s profiles.Source) *[]update {
			received := new([]update)
			go func() {
				for p, err := range s.Watch(ctx, "10.0.0.1:80") {
					*received = append(*received, update{p, err})
				}
			}()
			synctest.Wait()
			return received
		}
		early, original := watch(replay{first}), watch(first)
		var late *[]update
		a, b := &profiles.Profile{Name: "a"}, &profiles.Profile{Name: "b"}
		away := errors.New("away")
		all := []update{{a, nil}, {nil, away}, {b, nil}, {nil, profiles.ErrNoProfile}}
		for i, n := range all {
			source.updates <- n
			synctest.Wait()
			if i == 1 {
				late = watch(replay{first})
			}
		}
		last := watch(replay{first})
		assert.Equal(t, all, *original)
		replayed := []update{{a, nil}, {b, nil}, {nil, profiles.ErrNoProfile}}
		assert.Equal(t, replayed, *early)
		assert.Equal(t, replayed, *late)
		assert.Equal(t, replayed[1:], *last)
		require.Equal(t, 1, source.watches)
		end()
		synctest.Wait()
	})
}
