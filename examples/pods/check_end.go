package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// checkDrain terminates one of the two web pods' proxies while requests are sent, and verifies
// that no request fails: the proxy finishes its open requests, and the other pod serves the rest.
// The controller is not told that the proxy ends.
func (r *running) checkDrain(ctx context.Context) (string, error) {
	// The numbers of responses by pod: before, during and after the end of the proxy.
	ending := r.proxies["proxy-"+r.web1.name]
	atStart := map[string]int{}
	atShutdown := map[string]int{}
	atEnd := map[string]int{}
	if err := r.sendBatch(ctx, atStart); err != nil {
		return "", err
	}
	var load errgroup.Group
	// begun is closed when requests are being sent, so that the proxy ends while some are open.
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	// If the first batch fails, begin ends the wait below.
	load.Go(func() error {
		defer begin()
		// Requests are sent until the proxy has ended.
		for {
			if err := r.sendBatch(ctx, atShutdown); err != nil || ending.ended() != nil {
				return err
			}
			begin()
		}
	})
	<-begun
	stopped := ending.stop(ctx, syscall.SIGTERM)
	if err := load.Wait(); err != nil {
		return "", err
	}
	// The error of the requests comes first, because it tells more.
	if stopped != nil {
		return "", stopped
	}
	if err := r.sendBatch(ctx, atEnd); err != nil {
		return "", err
	}
	if atEnd[r.web1.name] > 0 {
		return "", fmt.Errorf("%d responses came from %s after its proxy had ended", atEnd[r.web1.name], r.web1.name)
	}
	return fmt.Sprintf("%d requests meanwhile, %d before and %d after: none failed",
		atShutdown[r.web1.name]+atShutdown[r.web2.name], atStart[r.web1.name]+atStart[r.web2.name], atEnd[r.web2.name]), nil
}

// sendBatch sends requests to the service web and adds to counts how many responses came from
// each pod. It returns an error if a request fails.
func (r *running) sendBatch(ctx context.Context, counts map[string]int) error {
	// curl sends one request for each number in the brackets.
	url := fmt.Sprintf("http://%s/[1-%d]?%s", r.web.host(), requests, encryptedMarker)
	out, err := r.runAsApp(ctx, r.client, "curl", "-sS", "--fail", "--max-time", "30", "--parallel", "--parallel-max", "10", url)
	if err != nil {
		return err
	}
	for _, line := range lines(out) {
		pod, _, _ := strings.Cut(line, " ")
		counts[pod]++
	}
	// All counted requests must have a response.
	if n := len(lines(out)); n != requests {
		return fmt.Errorf("%d responses to %d requests", n, requests)
	}
	return nil
}

// checkEnd terminates the proxies that are still running, and verifies that their exit status is
// 0. The control plane's proxy goes last, because the others use it.
func (r *running) checkEnd(ctx context.Context) (string, error) {
	// web1's proxy has ended in checkDrain.
	names := []string{r.client.name, r.web2.name, r.data.name, r.control.name}
	for _, name := range names {
		if err := r.proxies["proxy-"+name].stop(ctx, syscall.SIGTERM); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d of %d ended with status 0", len(names), len(names)), nil
}
