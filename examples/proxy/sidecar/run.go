package sidecar

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
)

// Run accepts connections until ctx ends or [Proxy.Shutdown] is called. It then closes the
// listeners, and waits until the open connections end, at most for the grace period. Last,
// it stops the admin and tap servers and all background work.
//
// Connections that are still open at the end of the grace period are closed and logged.
// They are not an error, as in linkerd's proxy.
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

	var operatorErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		operatorErr = p.operators.RunWithin(operating, left, p.log)
		stop() // after a failure
	}()
	var renewal errgroup.Group
	if p.identity != nil { // until the last connection has ended, which may need new connections
		renewal.Go(func() error {
			defer stop() // after a failure
			return p.identity.run(operating)
		})
	}
	paths.Go(func() error { returnMemory(ending); return nil })
	paths.Go(func() error { // ends a proxy that has no path, too
		select {
		case <-p.shutdown:
			stop()
		case <-ending.Done():
		}
		return nil
	})
	err := paths.Wait()
	leave()
	<-done
	if errors.Is(operatorErr, context.DeadlineExceeded) {
		p.log.Warn("the operators' connections were closed at the end of the grace period", "error", operatorErr)
		operatorErr = nil
	}
	return errors.Join(err, operatorErr, renewal.Wait())
}

// minOperatorGrace is the minimum time in which the admin and tap servers can end their
// connections. This time begins after the connections of the paths have ended.
const minOperatorGrace = time.Second

// grace returns a function that returns the rest of the grace period, but at least
// minOperatorGrace. The grace period begins when ctx ends. Before that, the function
// returns the whole grace period.
func (p *Proxy) grace(ctx context.Context) (left func() time.Duration) {
	ended := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() { ended <- time.Now() })
	return func() time.Duration {
		select {
		case at := <-ended:
			return max(p.config.Shutdown.Grace-time.Since(at), minOperatorGrace)
		default: // the operators' servers failed
			return p.config.Shutdown.Grace
		}
	}
}

// Shutdown makes Run drain and return. It does not wait for Run. If Run has not been called
// yet, Run drains at once when it is called.
func (p *Proxy) Shutdown() { p.requestShutdown() }

// close closes the listeners and the connections to the control plane, and ends all
// background work.
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
