package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
)

// tapped is a request in the tap of one proxy.
type tapped struct {
	init  tap.Event
	code  int
	ended bool
}

// watch taps proxies while requests are sent, until each has shown one complete request.
func (r *running) watch(ctx context.Context, path string, pods ...pod) ([]tapped, error) {
	if r.watcher == nil {
		w, err := r.newWatcher(ctx, tapper, tapper)
		if err != nil {
			return nil, err
		}
		r.watcher = w
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shown := make([]tapped, len(pods))
	all, watching := errgroup.WithContext(ctx)
	for i, p := range pods {
		all.Go(func() (err error) {
			shown[i], err = r.watchOne(watching, path, p)
			return err
		})
	}
	var sending sync.WaitGroup
	sending.Go(func() {
		for url := fmt.Sprintf("http://%s%s/[1-20]?%s", r.web.host(), path, secret); watching.Err() == nil; {
			_, _ = r.as(watching, r.client, "curl", "-sS", "--max-time", "30", "--parallel", "--parallel-max", "10", url)
		}
	})
	err := all.Wait()
	cancel()
	sending.Wait()
	return shown, err
}

// watchOne returns the first complete request.
func (r *running) watchOne(ctx context.Context, path string, p pod) (tapped, error) {
	conn, err := r.watcher.tap(p)
	if err != nil {
		return tapped{}, err
	}
	defer conn.Close()
	open := map[uint64]tapped{}
	for e, err := range tap.Observe(ctx, conn, &pb.ObserveRequest{Limit: 1000, Match: match.PathPrefix(path)}) {
		if err != nil {
			return tapped{}, fmt.Errorf("%s: %w", p.name, err)
		}
		t := open[e.ID.Stream]
		switch {
		case e.RequestInit != nil:
			t.init = e
		case e.ResponseInit != nil:
			t.code = e.ResponseInit.Status
		case e.ResponseEnd != nil:
			t.ended = true
		}
		if t.ended && t.init.RequestInit != nil {
			return t, nil
		}
		open[e.ID.Stream] = t
	}
	return tapped{}, fmt.Errorf("%s: tap ended without a complete request", p.name)
}

func (r *running) checkTapOut(ctx context.Context) (string, error) {
	all, err := r.watch(ctx, "/tapped-out", r.client)
	if err != nil {
		return "", err
	}
	t := all[0]
	err = errors.Join(t.is(tap.Outbound, r.web.host()),
		from(t.init.Source, r.client), label(t.init.DestinationLabels, "tls", "true"),
		label(t.init.DestinationLabels, "server_id", r.web1.identity()), label(t.init.DestinationLabels, "service", r.web.name))
	return fmt.Sprintf("to %s, which is %s", t.init.DestinationLabels["pod"], t.init.DestinationLabels["server_id"]), err
}

func (r *running) checkTapIn(ctx context.Context) (string, error) {
	all, err := r.watch(ctx, "/tapped-in", r.web1, r.web2)
	if err != nil {
		return "", err
	}
	for i, p := range []pod{r.web1, r.web2} {
		t := all[i]
		err = errors.Join(err, t.is(tap.Inbound, r.web.host()),
			from(t.init.Source, r.client), from(t.init.Destination, p),
			label(t.init.SourceLabels, "tls", "true"), label(t.init.SourceLabels, "client_id", r.client.identity()))
	}
	return fmt.Sprintf("%s and %s, from %s", r.web1.name, r.web2.name, all[0].init.SourceLabels["client_id"]), err
}

// is verifies the direction, the host and the status of a request.
func (t tapped) is(direction tap.Direction, host string) error {
	init := t.init.RequestInit
	if t.init.Direction != direction || !strings.HasPrefix(init.Authority, host) || t.code != 200 {
		return fmt.Errorf("%v, authority %q, status %d; not %v, %q, 200", t.init.Direction, init.Authority, t.code, direction, host)
	}
	return nil
}

func from(addr netip.AddrPort, p pod) error {
	if addr.Addr() != p.addr {
		return fmt.Errorf("the address is %s, must be that of %s, %s", addr, p.name, p.addr)
	}
	return nil
}

func label(labels map[string]string, key, want string) error {
	if labels[key] != want {
		return fmt.Errorf("label %s=%q, must be %q, in %v", key, labels[key], want, labels)
	}
	return nil
}

// checkTapRejected verifies that tap rejects clients in cleartext and clients with the
// certificate of a server.
func (r *running) checkTapRejected(ctx context.Context) (string, error) {
	cleartext, err := dial(netip.AddrPortFrom(r.client.addr, tapPort), nil)
	if err != nil {
		return "", err
	}
	defer cleartext.Close()
	w, err := r.newWatcher(ctx, r.web1.account, "nosy")
	if err != nil {
		return "", err
	}
	another, err := w.tap(r.client)
	if err != nil {
		return "", err
	}
	defer another.Close()
	for client, conn := range map[string]*grpc.ClientConn{"a cleartext client": cleartext, r.web1.identity(): another} {
		for _, err := range tap.Observe(ctx, conn, &pb.ObserveRequest{Limit: 1, Match: match.PathPrefix("/")}) {
			if status.Code(err) != codes.Unauthenticated {
				return "", fmt.Errorf("%s gets: %v", client, err) //nolint:errorlint // it may be nil
			}
		}
	}
	return "in cleartext, and as " + r.web1.identity() + ": Unauthenticated", nil
}
