package kit

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/share"
	"github.com/gotower/gotower/resolve"
)

// watch holds one target's Instancer and its latest event. All streams of the target share it.
type watch struct {
	share.Latest[[]string] // the instances, or the error, of the latest event

	target  string
	cancel  context.CancelFunc
	created chan struct{} // closed when the call of newInstancer has returned
	done    chan struct{} // closed when the Instancer is stopped
}

// startWatch starts a goroutine that creates the target's Instancer and reads its events until end is
// called.
func startWatch(target string, newInstancer func(string) (sd.Instancer, error), b resolve.Backoff) *watch {
	// Not a stream's context, because all streams of the target share the watch.
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{
		target: target, cancel: cancel, created: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run(ctx, newInstancer, b)
	return w
}

// run creates the Instancer, reads its events until ctx ends, and stops it.
func (w *watch) run(ctx context.Context, newInstancer func(string) (sd.Instancer, error), b resolve.Backoff) {
	defer close(w.done)
	instancer := w.make(ctx, newInstancer, b)
	close(w.created)
	// make has stored an error that tells why, or ctx has ended.
	if instancer == nil {
		return
	}
	// go-kit's Instancers hold a lock while they send, and Register and Deregister need
	// the same lock. Therefore the events are read until both have returned.
	// Unbuffered: the Instancer blocks in its send until read takes the event.
	events := make(chan sd.Event)
	stopped := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() { w.read(events, stopped) })
	if err := panics.Contain(func() { instancer.Register(events) }); err != nil {
		w.Fail(fmt.Errorf("register with an Instancer: %w", err))
	}
	// Until the last stream has ended.
	<-ctx.Done()
	// A panic of foreign code while it stops is ignored: nobody reads the watch any longer.
	_ = panics.Contain(func() { instancer.Deregister(events) })
	_ = panics.Contain(instancer.Stop)
	close(stopped)
	reading.Wait()
}

// make calls newInstancer, with a backoff between the calls, until newInstancer returns an
// Instancer. It returns nil if ctx ends or newInstancer returns a final error.
func (w *watch) make(
	ctx context.Context, newInstancer func(string) (sd.Instancer, error), b resolve.Backoff,
) sd.Instancer {
	for failures := 0; ; failures++ {
		var instancer sd.Instancer
		var err error
		if panicked := panics.Contain(func() { instancer, err = newInstancer(w.target) }); panicked != nil {
			err = panicked
		}
		switch {
		// A factory that returns neither must not cause a panic later.
		case err == nil && instancer == nil:
			err = errors.New("it is nil")
		// It took so long that all streams have ended, so the result is not needed.
		case err == nil && ctx.Err() != nil:
			_ = panics.Contain(instancer.Stop)
			return nil
		case err == nil:
			return instancer
		}
		w.Fail(fmt.Errorf("make an Instancer: %w", err))
		if errors.Is(err, resolve.ErrUnresolvable) || backoff.Sleep(ctx, b.Delay(failures)) != nil {
			return nil
		}
	}
}

// read stores the latest event until stopped is closed.
func (w *watch) read(events <-chan sd.Event, stopped <-chan struct{}) {
	// Only this goroutine reads events. It also drains them while the Instancer is being stopped.
	for {
		select {
		case e := <-events:
			if e.Err != nil {
				w.Fail(e.Err)
			} else {
				w.Set(e.Instances)
			}
		case <-stopped:
			return
		}
	}
}

// end stops the Instancer and waits until it is stopped. If newInstancer has not returned yet, end does
// not wait, because it may block for long. The goroutine then stops the Instancer later.
func (w *watch) end() {
	// A call of newInstancer that has not returned cannot be interrupted.
	w.cancel()
	select {
	case <-w.created:
		<-w.done
	default:
	}
}
