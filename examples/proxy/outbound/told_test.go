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

// news is what a source says of a profile.
type news struct {
	profile *profiles.Profile
	err     error
}

// scripted is a source that says what the test does.
type scripted struct {
	says  chan news
	asked int
}

func (s *scripted) Watch(ctx context.Context, _ string) iter.Seq2[*profiles.Profile, error] {
	s.asked++
	return func(yield func(*profiles.Profile, error) bool) {
		for {
			select {
			case n := <-s.says:
				if !yield(n.profile, n.err) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// Two want the profile of a target, and one asks.
func TestAProfileIsAskedForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		source := &scripted{says: make(chan news)}
		first := tell(source)
		watch := func(s profiles.Source) *[]news {
			heard := new([]news)
			go func() {
				for p, err := range s.Watch(ctx, "10.0.0.1:80") {
					*heard = append(*heard, news{p, err})
				}
			}()
			synctest.Wait()
			return heard
		}
		early, asks := watch(again{first}), watch(first)
		var late *[]news
		a, b := &profiles.Profile{Name: "a"}, &profiles.Profile{Name: "b"}
		away := errors.New("away")
		all := []news{{a, nil}, {nil, away}, {b, nil}, {nil, profiles.ErrNoProfile}}
		for i, n := range all {
			source.says <- n
			synctest.Wait()
			if i == 1 {
				late = watch(again{first})
			}
		}
		last := watch(again{first})
		assert.Equal(t, all, *asks)
		told := []news{{a, nil}, {b, nil}, {nil, profiles.ErrNoProfile}}
		assert.Equal(t, told, *early)
		assert.Equal(t, told, *late)
		assert.Equal(t, told[1:], *last)
		require.Equal(t, 1, source.asked)
		end()
		synctest.Wait()
	})
}
