package sidecar

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

// Run serves until ctx ends, or somebody asks for the end. Then nothing more is
// accepted, what is open ends by itself or when the grace is over, and then the
// operator's servers and the background end. Whoever operates and watches sees
// the end, too.
func (p *Proxy) Run(ctx context.Context) error {
	defer p.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p.stopped.Store(&stop)

	operating, leave := context.WithCancel(context.WithoutCancel(ctx))
	paths, ending := errgroup.WithContext(ctx)
	for _, path := range p.paths {
		paths.Go(func() error { return p.serve(ending, path) })
	}
	context.AfterFunc(ending, p.drain)

	var operated error
	done := make(chan struct{})
	go func() {
		defer close(done)
		operated = p.operators.Run(operating, p.config.Shutdown.Grace, p.log)
		stop() // they failed, or it was the end anyway
	}()
	if p.identity != nil {
		paths.Go(func() error { return p.identity.run(ending) })
	}
	paths.Go(func() error { // a proxy without a path serves its operators
		<-ending.Done()
		return nil
	})
	err := paths.Wait()
	leave()
	<-done
	return errors.Join(err, operated)
}

// Shutdown asks for the end of Run. It does not wait.
func (p *Proxy) Shutdown() {
	if stop := p.stopped.Load(); stop != nil {
		(*stop)()
	}
}

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
