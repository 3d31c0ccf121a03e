package sidecar

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
)

// Run serves until ctx ends, or somebody asks for the end. Then nothing more is
// accepted, what is open ends by itself or when the grace is over, and then the
// operator's servers, the renewal of certificates and the background end. Whoever
// operates and watches sees the end, too. What the grace breaks off is logged, and
// no error, as in linkerd's proxy.
func (p *Proxy) Run(ctx context.Context) error {
	defer p.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	operating, leave := context.WithCancel(context.WithoutCancel(ctx))
	paths, ending := errgroup.WithContext(ctx)
	for _, path := range p.paths {
		paths.Go(func() error { return p.serve(ending, path) })
	}
	left := p.grace(ending)
	context.AfterFunc(ending, p.drain)

	var operated error
	done := make(chan struct{})
	go func() {
		defer close(done)
		operated = p.operators.RunWithin(operating, left, p.log)
		stop() // they failed, or it was the end anyway
	}()
	var proving errgroup.Group
	if p.identity != nil { // till the last connection has ended: others may be made for it
		proving.Go(func() error {
			defer stop() // it failed, or it was the end anyway
			return p.identity.run(operating)
		})
	}
	paths.Go(func() error { returnMemory(ending); return nil })
	paths.Go(func() error { // a proxy without a path serves its operators
		select {
		case <-p.asked:
			stop()
		case <-ending.Done():
		}
		return nil
	})
	err := paths.Wait()
	leave()
	<-done
	if errors.Is(operated, context.DeadlineExceeded) {
		p.log.Warn("the end was not waited for", "error", operated)
		operated = nil
	}
	return errors.Join(err, operated, proving.Wait())
}

// lastWord is what operators have at least, whatever connections took.
const lastWord = time.Second

// grace returns what says how much of the grace is left.
func (p *Proxy) grace(ctx context.Context) (left func() time.Duration) {
	ended := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() { ended <- time.Now() })
	return func() time.Duration {
		select {
		case at := <-ended:
			return max(p.config.Shutdown.Grace-time.Since(at), lastWord)
		default: // the operators' servers failed
			return p.config.Shutdown.Grace
		}
	}
}

// Shutdown asks for the end of Run, also of one that has yet to begin. It does
// not wait.
func (p *Proxy) Shutdown() { p.ask() }

// close lets go of what is still there.
func (p *Proxy) close() {
	for _, path := range p.paths {
		path.l.Close()
	}
	p.drain()
	p.end()
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range p.control {
		_ = c.Close(now) // watches do not end by themselves
	}
}
