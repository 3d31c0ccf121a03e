package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// checkDrain terminates the proxy of one of the two web pods while requests are sent. It
// verifies that no request fails: the proxy finishes its open requests, and the other pod
// serves all further requests. The controller is not notified that the proxy ends.
func (r *running) checkDrain(ctx context.Context) (string, error) {
	ending := r.proxies["proxy-"+r.web1.name]
	before, during, after := map[string]int{}, map[string]int{}, map[string]int{}
	if err := r.sendBatch(ctx, before); err != nil {
		return "", err
	}
	var load errgroup.Group
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	load.Go(func() error {
		defer begin()
		for {
			if err := r.sendBatch(ctx, during); err != nil || ending.ended() != nil {
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
	if stopped != nil {
		return "", stopped
	}
	if err := r.sendBatch(ctx, after); err != nil {
		return "", err
	}
	if after[r.web1.name] > 0 {
		return "", fmt.Errorf("%d responses came from %s after its proxy had ended", after[r.web1.name], r.web1.name)
	}
	return fmt.Sprintf("%d requests meanwhile, %d before and %d after: none failed",
		during[r.web1.name]+during[r.web2.name], before[r.web1.name]+before[r.web2.name], after[r.web2.name]), nil
}

// sendBatch sends requests to the service web and adds the number of responses of each pod
// to the map counts. It returns an error if a request fails.
func (r *running) sendBatch(ctx context.Context, counts map[string]int) error {
	url := fmt.Sprintf("http://%s/[1-%d]?%s", r.web.host(), requests, encryptedMarker)
	out, err := r.runAsApp(ctx, r.client, "curl", "-sS", "--fail", "--max-time", "30", "--parallel", "--parallel-max", "10", url)
	if err != nil {
		return err
	}
	for _, line := range lines(out) {
		pod, _, _ := strings.Cut(line, " ")
		counts[pod]++
	}
	if n := len(lines(out)); n != requests {
		return fmt.Errorf("%d responses to %d requests", n, requests)
	}
	return nil
}

// checkEnd terminates the proxies that earlier checks have not terminated, and verifies that
// their exit status is 0. The proxy of the control plane is terminated last, because the others
// use it.
func (r *running) checkEnd(ctx context.Context) (string, error) {
	names := []string{r.client.name, r.web2.name, r.data.name, r.control.name}
	for _, name := range names {
		if err := r.proxies["proxy-"+name].stop(ctx, syscall.SIGTERM); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d of %d ended with status 0", len(names), len(names)), nil
}
