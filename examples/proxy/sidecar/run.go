package sidecar

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/examples/internal/cli"
)

// Run accepts connections until ctx ends or [Proxy.Shutdown] is called. It then closes the
// listeners and waits until the open connections end, at most for the grace period. Last, it stops
// the admin and tap servers and all background work.
//
// Connections that are still open after the grace period are closed and logged. Like linkerd's
// proxy, Run does not return an error for them.
func (p *Proxy) Run(ctx context.Context) error {
	defer cli.Flush(p.access)
	defer p.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	// The operators' servers and the identity outlive the paths, so their context does not end with ctx.
	operating, stopOperators := context.WithCancel(context.WithoutCancel(ctx))
	paths, ending := errgroup.WithContext(ctx)
	for _, path := range p.paths {
		paths.Go(func() error { return p.serve(ending, path) })
	}
	remaining := p.grace(ending)
	context.AfterFunc(ending, p.drain)

	var operatorErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		operatorErr = p.operators.RunWithin(operating, remaining, p.log)
		stop() // the proxy does not run without them
	}()
	var renewal errgroup.Group
	if p.spans != nil { // records spans until the last request has ended
		renewal.Go(func() error { p.spans.Run(operating); return nil })
	}
	if p.identity != nil { // open connections may need new ones, and therefore a valid certificate
		renewal.Go(func() error {
			defer stop() // the proxy does not run without a certificate
			return p.identity.run(operating)
		})
	}
	paths.Go(func() error { returnMemory(ending); return nil })
	paths.Go(func() error { // keeps a proxy without listeners running, too
		select {
		case <-p.shutdown:
			stop()
		case <-ending.Done():
		}
		return nil
	})
	err := paths.Wait()
	stopOperators()
	<-done
	if errors.Is(operatorErr, context.DeadlineExceeded) {
		p.log.Warn("the operators' connections were closed at the end of the grace period", "error", operatorErr)
		operatorErr = nil
	}
	return errors.Join(err, operatorErr, renewal.Wait())
}

// minOperatorGrace is how long at least the admin and tap servers may take to end their
// connections, after those of the paths have ended.
const minOperatorGrace = time.Second

// grace returns a function that returns what is left of the grace period, but at least
// minOperatorGrace. The grace period begins when ctx ends.
func (p *Proxy) grace(ctx context.Context) (remaining func() time.Duration) {
	// The buffer lets AfterFunc send without a receiver. The time is read at most once.
	ended := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() { ended <- time.Now() })
	return func() time.Duration {
		select {
		case end := <-ended:
			return max(p.config.Shutdown.Grace-time.Since(end), minOperatorGrace)
		default: // ctx is active: the admin or tap server failed
			return p.config.Shutdown.Grace
		}
	}
}

// Shutdown makes Run drain and return, without waiting for it. If Run has not been called yet, it
// drains immediately when it is called.
func (p *Proxy) Shutdown() { p.requestShutdown() }

// close closes the listeners and the connections to the control plane, and ends all background
// work.
func (p *Proxy) close() {
	for _, path := range p.paths {
		path.listener.Close()
	}
	// First let open HTTP connections end, then stop everything else.
	p.drain()
	p.end()
	// With a context that has ended, Close does not wait.
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range p.control {
		_ = c.Close(canceled) // does not wait, because watches never end by themselves
	}
}
