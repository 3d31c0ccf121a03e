package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/demo/emojivoto"
	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/internal/backoff"
)

// Authorities with which requests address the services.
const (
	webName    = "web.emojivoto:80"
	emojiName  = "emoji.emojivoto:8080"
	votingName = "voting.emojivoto:8080"
)

// quick and slow are replicas' latencies. upTime is how long restartRepeatedly runs its replica,
// and downTime is how long the replica then stays stopped.
const (
	quick = 2 * time.Millisecond
	slow  = 400 * time.Millisecond // long enough for the slowest replica on a busy machine

	upTime = 2 * time.Second
	// drainTime is how long a replica still serves after it was removed from the controller, as
	// with a preStop hook.
	drainTime = 500 * time.Millisecond
	downTime  = time.Second
)

// application is the emoji-voting application. It consists of its services' replicas, and the
// controller, which reports their endpoints to the proxies.
type application struct {
	controller *controller.Controller
	running    *errgroup.Group
	log        *slog.Logger

	mu        sync.Mutex
	endpoints map[string]map[string]controller.Endpoint // by the names of the service and the pod
}

// replica starts a gRPC server as one replica of service with the given pod name, and announces
// it to the controller. The replica serves until ctx ends. register adds service's methods to the
// server.
func (a *application) replica(ctx context.Context, service, pod string, register func(*grpc.Server)) error {
	var g serve.Group
	addr := g.GRPC(pod, loopback, register, nil)
	return a.announce(ctx, &g, service, pod, addr)
}

// announce runs g's servers in the background, and adds addr to the controller as an endpoint of
// service, with the label "pod" set to pod. When ctx ends, it removes the endpoint, waits for
// drainTime, and stops g.
func (a *application) announce(ctx context.Context, g *serve.Group, service, pod, addr string) error {
	if err := g.Err(); err != nil {
		return err
	}
	addrPort, err := netip.ParseAddrPort(addr)
	if err != nil {
		return fmt.Errorf("%s: %w", pod, err)
	}
	// The servers outlive ctx by drainTime, because proxies may still send requests until they know.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	a.running.Go(func() error { return g.Run(serving, grace, a.log) })
	a.running.Go(func() error {
		defer stop()
		<-ctx.Done()
		return a.leave(service, pod)
	})
	return a.join(service, pod, controller.Endpoint{Addr: addrPort, Labels: map[string]string{"pod": pod}})
}

// join adds the endpoint e to the service and publishes it.
func (a *application) join(service, pod string, e controller.Endpoint) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.endpoints[service] == nil {
		a.endpoints[service] = map[string]controller.Endpoint{}
	}
	// A restarted replica has another address.
	a.endpoints[service][pod] = e
	return a.publish()
}

// leave removes the endpoint of pod, publishes this, and waits for drainTime.
func (a *application) leave(service, pod string) error {
	a.mu.Lock()
	delete(a.endpoints[service], pod)
	err := a.publish()
	// The lock must not be held during the wait.
	a.mu.Unlock()
	_ = backoff.Sleep(context.Background(), drainTime)
	return err
}

// publish sends the endpoints of all replicas to the controller. The caller must hold mu.
func (a *application) publish() error {
	// The configuration always contains all services, because it replaces the previous one.
	cfg := controller.Config{Destinations: map[string]controller.Destination{}}
	for service, pods := range a.endpoints {
		d := controller.Destination{
			Labels:  map[string]string{"namespace": "emojivoto", "deployment": deployment(service)},
			Profile: profile(service),
		}
		// The order is fixed, so that an unchanged set of endpoints looks unchanged.
		for _, pod := range slices.Sorted(maps.Keys(pods)) {
			d.Endpoints = append(d.Endpoints, pods[pod])
		}
		cfg.Destinations[service] = d
	}
	if err := a.controller.Set(cfg); err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	return nil
}

// deployment returns the name of a service's deployment: the part before the first dot.
func deployment(service string) string {
	name, _, _ := strings.Cut(service, ".")
	return name
}

// profile returns a profile with named routes for service, because tap shows the names of
// routes. It returns nil if the demo defines no routes for service.
func profile(service string) *controller.Profile {
	switch service {
	case webName:
		return &controller.Profile{Routes: []controller.Route{
			{Name: "vote", Match: controller.Match{Method: "GET", Path: "/api/vote"}},
			{Name: "list", Match: controller.Match{Method: "GET", Path: "/api/list"}},
		}}
	case votingName:
		// The first route that matches counts, so the special one comes before the general one.
		return &controller.Profile{Routes: []controller.Route{
			{Name: "doughnut", Match: controller.Match{Path: `/emojivoto\.v1\.VotingService/VoteDoughnut`}},
			{Name: "vote", Match: controller.Match{Path: `/emojivoto\.v1\.VotingService/Vote.*`}},
		}}
	}
	return nil
}

// backends starts the replicas of the emoji and voting services.
func (a *application) backends(ctx context.Context) error {
	// constant returns a function that always returns d, as the servers call one for each request.
	constant := func(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
	// The slow replica shows how the proxy's balancer avoids it.
	for pod, latency := range map[string]time.Duration{"emoji-0": quick, "emoji-1": quick, "emoji-2": quick, "emoji-slow": slow} {
		if err := a.replica(ctx, emojiName, pod, func(s *grpc.Server) {
			emojivoto.NewEmojiServer(constant(latency)).Register(s)
		}); err != nil {
			return err
		}
	}
	// All replicas count in the same place, so it does not matter which one gets a vote.
	tally := emojivoto.NewTally()
	voting := func(s *grpc.Server) { emojivoto.NewVotingServer(tally, constant(quick)).Register(s) }
	for _, pod := range []string{"voting-0", "voting-1"} {
		if err := a.replica(ctx, votingName, pod, voting); err != nil {
			return err
		}
	}
	a.running.Go(func() error { return a.restartRepeatedly(ctx, "voting-2", voting) })
	return nil
}

// restartRepeatedly starts a replica of the voting service and stops it again, until ctx ends.
func (a *application) restartRepeatedly(ctx context.Context, pod string, register func(*grpc.Server)) error {
	for ctx.Err() == nil {
		// Its end stops only this replica.
		replicaCtx, stop := context.WithCancel(ctx)
		err := a.replica(replicaCtx, votingName, pod, register)
		if err == nil {
			_ = backoff.Sleep(ctx, upTime)
		}
		stop()
		if err != nil {
			return err
		}
		// The replica still drains before it is down.
		_ = backoff.Sleep(ctx, drainTime+downTime)
	}
	return nil
}
