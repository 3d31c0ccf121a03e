package profiles_test

import (
	"context"
	"iter"

	"github.com/gotower/gotower/profiles"
)

// script is a Source that the test plays.
type script struct {
	lines chan line
	ended chan struct{} // closed when the watch is over
}

type line struct {
	profile *profiles.Profile
	err     error
	taken   chan struct{}
}

func newScript() *script {
	return &script{lines: make(chan line), ended: make(chan struct{})}
}

// Watch serves one watch.
func (s *script) Watch(ctx context.Context, _ string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		defer close(s.ended)
		for {
			select {
			case <-ctx.Done():
				return
			case l, ok := <-s.lines:
				if !ok {
					return
				}
				more := yield(l.profile, l.err)
				close(l.taken)
				if !more {
					return
				}
			}
		}
	}
}

// send returns when the watcher has dealt with the item.
func (s *script) send(p *profiles.Profile, err error) {
	l := line{p, err, make(chan struct{})}
	s.lines <- l
	<-l.taken
}

// end is the end of the sequence.
func (s *script) end() {
	close(s.lines)
	<-s.ended
}
