package kit

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/resolve"
)

// watch is one Instancer, and the latest that it said.
type watch struct {
	*board

	target  string
	streams int // guarded by the resolver
	cancel  context.CancelFunc
	made    chan struct{} // closed when the maker is not running any more
	done    chan struct{} // closed when nothing is held any more
}

func startWatch(target string, newInstancer func(string) (sd.Instancer, error), b resolve.Backoff) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{
		board: newBoard(), target: target, cancel: cancel,
		made: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run(ctx, newInstancer, b)
	return w
}

// run makes the Instancer, listens until ctx ends, and stops it.
func (w *watch) run(ctx context.Context, newInstancer func(string) (sd.Instancer, error), b resolve.Backoff) {
	defer close(w.done)
	from := w.make(ctx, newInstancer, b)
	close(w.made)
	if from == nil {
		return
	}
	// go-kit's Instancers send with a lock held, which Register and Deregister
	// take too: somebody must read until they have returned.
	events, deaf := make(chan sd.Event), make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() { w.read(events, deaf) })
	if err := panics.Contain(func() { from.Register(events) }); err != nil {
		w.note(sd.Event{Err: fmt.Errorf("register with an Instancer: %w", err)})
	}
	<-ctx.Done()
	_ = panics.Contain(func() { from.Deregister(events) })
	_ = panics.Contain(from.Stop)
	close(deaf)
	reading.Wait()
}

// make tries until there is an Instancer, or returns nil if there will be none.
// One that comes too late is stopped.
func (w *watch) make(
	ctx context.Context, newInstancer func(string) (sd.Instancer, error), b resolve.Backoff,
) sd.Instancer {
	for failures := 0; ; failures++ {
		var from sd.Instancer
		var err error
		if panicked := panics.Contain(func() { from, err = newInstancer(w.target) }); panicked != nil {
			err = panicked
		}
		switch {
		case err == nil && from == nil:
			err = errors.New("there is none")
		case err == nil && ctx.Err() != nil:
			_ = panics.Contain(from.Stop)
			return nil
		case err == nil:
			return from
		}
		w.note(sd.Event{Err: fmt.Errorf("make an Instancer: %w", err)})
		if errors.Is(err, resolve.ErrUnresolvable) || backoff.Sleep(ctx, b.Delay(failures)) != nil {
			return nil
		}
	}
}

func (w *watch) read(events <-chan sd.Event, deaf <-chan struct{}) {
	for {
		select {
		case e := <-events:
			w.note(e)
		case <-deaf:
			return
		}
	}
}

// end stops listening. It waits for that, but not for a maker.
func (w *watch) end() {
	w.cancel()
	select {
	case <-w.made:
		<-w.done
	default:
	}
}
