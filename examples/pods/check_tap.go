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

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// tapped is a request that a proxy's tap has shown: its headers and its response status.
type tapped struct {
	init  tap.Event // event of the request headers
	code  int       // status of the response
	ended bool      // the event of the response's end has arrived
}

// watch sets r.watcher to a client of the proxies' taps, unless it is set already.
func (r *running) watch(ctx context.Context) (err error) {
	if r.watcher == nil {
		r.watcher, err = r.newWatcher(ctx, tapper, tapper)
	}
	return err
}

// tapPods watches the taps of the given pods' proxies. Meanwhile it sends requests to path on the
// service s. It returns the first complete request from each tap.
func (r *running) tapPods(ctx context.Context, s service, path string, pods ...pod) ([]tapped, error) {
	if err := r.watch(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Each goroutine writes only its own element.
	shown := make([]tapped, len(pods))
	// The first error ends the other watches too.
	all, watching := errgroup.WithContext(ctx)
	for i, p := range pods {
		all.Go(func() (err error) {
			shown[i], err = r.tapPod(watching, path, p)
			return err
		})
	}
	var sending sync.WaitGroup
	// The tap shows only requests that begin after it, so requests are sent until all taps have shown one.
	sending.Go(func() {
		for url := fmt.Sprintf("http://%s%s/[1-20]?%s", s.host(), path, encryptedMarker); watching.Err() == nil; {
			_, _ = r.runAsApp(watching, r.client, "curl", "-sS", "--max-time", "30", "--parallel", "--parallel-max", "10", url)
		}
	})
	err := all.Wait()
	// All watches have ended. This also ends a curl that is running.
	cancel()
	sending.Wait()
	return shown, err
}

// tapPod watches the tap of the proxy in the pod p. It returns the first complete request to
// path.
func (r *running) tapPod(ctx context.Context, path string, p pod) (tapped, error) {
	conn, err := r.watcher.tap(p)
	if err != nil {
		return tapped{}, err
	}
	defer conn.Close()
	// The taps show several requests at once, so their events are matched by stream.
	open := map[uint64]tapped{}
	for e, err := range tap.Observe(ctx, conn, &pb.ObserveRequest{Limit: 1000, Match: match.PathPrefix(path)}) {
		if err != nil {
			return tapped{}, fmt.Errorf("%s: %w", p.name, err)
		}
		// An unknown stream yields an empty value.
		t := open[e.ID.Stream]
		switch {
		case e.RequestInit != nil:
			t.init = e
		case e.ResponseInit != nil:
			t.code = e.ResponseInit.Status
		case e.ResponseEnd != nil:
			t.ended = true
		}
		// A watch may begin in the middle of a request, which has no init event then.
		if t.ended && t.init.RequestInit != nil {
			return t, nil
		}
		open[e.ID.Stream] = t
	}
	return tapped{}, fmt.Errorf("%s: tap ended without a complete request", p.name)
}

// explained watches the tap of p and calls send until the tap has shown a complete request to
// path, together with how the proxy handled it. init is the event with the request headers, and
// explanation is the explanation as text.
func (r *running) explained(ctx context.Context, p pod, path string, send func()) (init tap.Event, explanation string, err error) {
	// The explanation comes with the last event, and the request headers with the first.
	inits := map[uint64]tap.Event{}
	err = r.tapWhile(ctx, p, &tappb.WatchRequest{Match: match.PathPrefix(path), Explain: true}, send, func(e tap.Event) bool {
		switch {
		case e.RequestInit != nil:
			inits[e.ID.Stream] = e
		case e.ResponseEnd != nil && len(e.ResponseEnd.Explanation) > 0 && inits[e.ID.Stream].RequestInit != nil:
			init = inits[e.ID.Stream]
			explanation = layer.Node{Name: "request", Children: e.ResponseEnd.Explanation}.String()
			return true
		}
		return false
	})
	return init, explanation, err
}

// deniedConnection watches p's tap and calls send until the tap shows that a connection from
// client failed, with an explanation. It returns the connection's Close event.
func (r *running) deniedConnection(ctx context.Context, p, client pod, send func()) (failed tap.Event, err error) {
	err = r.tapWhile(ctx, p, &tappb.WatchRequest{Explain: true}, send, func(e tap.Event) bool {
		failed = e
		return e.Source.Addr() == client.addr && e.Close != nil && e.Close.Err != "" && len(e.Close.Explanation) > 0
	})
	return failed, err
}

// tapWhile watches the tap of the pod p. It calls send repeatedly in the background, and
// calls done for each event. It returns when done returns true.
func (r *running) tapWhile(ctx context.Context, p pod, req *tappb.WatchRequest, send func(), done func(tap.Event) bool) error {
	if err := r.watch(ctx); err != nil {
		return err
	}
	conn, err := r.watcher.tap(p)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	// The deferred calls run in reverse: cancel ends the last send, and then Wait waits for it.
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	// The tap shows only what begins after it, so sends repeat.
	sending.Go(func() {
		for ctx.Err() == nil {
			send()
		}
	})
	for e, err := range tap.Watch(ctx, conn, req) {
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if done(e) {
			return nil
		}
	}
	return fmt.Errorf("%s: tap ended too early", p.name)
}

// explainsShop sends requests to path on shop from the client until the client's tap shows an
// explanation of how the proxy handled one of them. It returns an error unless this explanation
// contains all texts. If the client's proxy is foreign, it returns nil.
func (r *running) explainsShop(ctx context.Context, path string, texts ...string) error {
	if r.isForeign(r.client) {
		return nil
	}
	// The errors of requests do not matter, because the tap shows whether one succeeded.
	_, explanation, err := r.explained(ctx, r.client, path, func() {
		_, _ = r.runAsApp(ctx, r.client, "curl", "-sS", "--max-time", "30", "http://"+r.shop.host()+path+"?"+encryptedMarker)
	})
	return errors.Join(err, contains("the explanation", explanation, texts...))
}

// contains returns an error unless text contains each element of want. name
// identifies text in the error.
func contains(name, text string, want ...string) (err error) {
	for _, w := range want {
		if !strings.Contains(text, w) {
			err = errors.Join(err, fmt.Errorf("%s does not contain %q: %s", name, w, text))
		}
	}
	return err
}

// checkTapOut verifies that the tap of the client's proxy shows requests with their labels.
func (r *running) checkTapOut(ctx context.Context) (string, error) {
	all, err := r.tapPods(ctx, r.web, "/tapped-out", r.client)
	if err != nil {
		return "", err
	}
	// There is one pod, so there is one request.
	t := all[0]
	err = errors.Join(t.is(tap.Outbound, r.web.host()),
		from(t.init.Source, r.client), label(t.init.DestinationLabels, "tls", "true"),
		label(t.init.DestinationLabels, "server_id", r.web1.identity()), label(t.init.DestinationLabels, "service", r.web.name))
	return fmt.Sprintf("to %s, which is %s", t.init.DestinationLabels["pod"], t.init.DestinationLabels["server_id"]), err
}

// checkTapIn verifies that the taps of the web pods' proxies show requests with their
// labels.
func (r *running) checkTapIn(ctx context.Context) (string, error) {
	all, err := r.tapPods(ctx, r.web, "/tapped-in", r.web1, r.web2)
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

// is returns an error unless t goes in this direction, its authority begins with host, and its
// status is 200.
func (t tapped) is(direction tap.Direction, host string) error {
	init := t.init.RequestInit
	if t.init.Direction != direction || !strings.HasPrefix(init.Authority, host) || t.code != 200 {
		return fmt.Errorf("%v, authority %q, status %d; not %v, %q, 200", t.init.Direction, init.Authority, t.code, direction, host)
	}
	return nil
}

// from returns an error unless the IP address in addr is the address of the pod p.
func from(addr netip.AddrPort, p pod) error {
	if addr.Addr() != p.addr {
		return fmt.Errorf("the address is %s, must be that of %s, %s", addr, p.name, p.addr)
	}
	return nil
}

// label returns an error unless labels contains the key with the value want.
func label(labels map[string]string, key, want string) error {
	if labels[key] != want {
		return fmt.Errorf("label %s=%q, must be %q, in %v", key, labels[key], want, labels)
	}
	return nil
}

// checkTapRejected verifies that tap rejects a client in cleartext, and a client whose
// certificate is for another name.
func (r *running) checkTapRejected(ctx context.Context) (string, error) {
	// A nil configuration means cleartext.
	cleartext, err := dial(netip.AddrPortFrom(r.client.addr, tapPort), nil)
	if err != nil {
		return "", err
	}
	defer cleartext.Close()
	// This client's certificate is valid, but not for the account that may use tap.
	w, err := r.newWatcher(ctx, r.web1.account, "other-account")
	if err != nil {
		return "", err
	}
	another, err := w.tap(r.client)
	if err != nil {
		return "", err
	}
	defer another.Close()
	// Observe ends with the error, which a rejected client gets first.
	for client, conn := range map[string]*grpc.ClientConn{"a cleartext client": cleartext, r.web1.identity(): another} {
		for _, err := range tap.Observe(ctx, conn, &pb.ObserveRequest{Limit: 1, Match: match.PathPrefix("/")}) {
			if status.Code(err) != codes.Unauthenticated {
				return "", fmt.Errorf("%s gets: %v", client, err) //nolint:errorlint // it may be nil
			}
		}
	}
	return "in cleartext, and as " + r.web1.identity() + ": Unauthenticated", nil
}
