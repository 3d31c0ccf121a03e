package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/kubernetes"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/gateway/kube"
	"github.com/gotower/gotower/examples/internal/setting"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
	"github.com/gotower/gotower/resolve/k8s"
	"github.com/gotower/gotower/resolve/linkerd"
	"github.com/gotower/gotower/resolve/static"
	"github.com/gotower/gotower/tap"
)

// upstream is a configured service with its current settings, and the key in gateway.services. As
// long as the service's Version stays the same, only the settings change, and the service keeps
// its connections and statistics.
type upstream struct {
	settings *setting.Value[*config.Service]
	health   *serviceHealth // nil if the service has no endpoints
}

// newUpstream returns a new service with the settings in c. It holds a copy of c, because later
// configurations may keep the service, and must not keep all services of this one with it.
func newUpstream(c *config.Service, log *slog.Logger) *upstream {
	clone := *c
	s := &upstream{settings: setting.New(&clone)}
	if c.DirectResponse == nil {
		s.health = newHealth(string(c.Name), log)
	}
	return s
}

// String returns the service's name.
func (s *upstream) String() string { return s.settings.Get().String() }

// keeps reports whether s can take over the settings in c. If not, a new service is needed.
func (s *upstream) keeps(c *config.Service) bool {
	return s != nil && s.settings.Get().Version() == c.Version()
}

// update gives s a copy of the settings in c.
func (s *upstream) update(c *config.Service) {
	if s.settings.Get().Settings() != c.Settings() {
		clone := *c
		s.settings.Set(&clone)
	}
}

// newService returns the service for s: a balancer over its endpoints, behind a queue. Requests
// wait for an endpoint only in this queue, until the service is resolved or while its endpoints
// are busy. If all endpoints have failed, requests fail immediately. Background work stops when
// ctx ends.
func (g *gateway) newService(ctx context.Context, s *upstream) httplayer.Service {
	// Later changes of the settings arrive through Follow and setting.Layer below.
	c := s.settings.Get()
	if c.DirectResponse != nil {
		return direct(c.DirectResponse)
	}
	resolver, name, err := g.newResolver(ctx, s)
	if err != nil {
		// The service exists, but its requests fail with err.
		g.log.Error("service without endpoints", "service", c.Name, "err", err)
		resolver = failed(err)
	}
	balancer := balance.Resolve(ctx, s.health.watch(resolver), balance.Config{
		Target: name, FailFast: true, OnEvent: s.health.event, Metrics: g.metrics.Balance(string(c.Name)),
	}, g.newEndpoint(s), balance.WithCompletion(httplayer.Completion))
	s.health.follow(balancer.Snapshot)
	// Follow calls the function now, and again after each change of the settings.
	s.settings.Follow(ctx, func(now *config.Service) {
		if err := balancer.SetPolicy(policy(now)); err != nil {
			g.log.Error("the load balancer was not changed", "service", now.Name, "err", err)
		}
	})
	instruments := g.metrics.Layer(string(c.Name))
	// These layers are built again after each change, around the same balancer.
	return setting.Layer(s.settings, func(now *config.Service) httplayer.Layer {
		return httplayer.NewStack().WithTarget(string(now.Name)).WithMetrics(instruments).
			With("hash", affinity(now.LoadBalancer.Hash)).
			With("sticky_session", session(now.SessionPersistence)).
			With("unavailable", unavailable(string(now.Name))).
			Queue(now.Queue.Capacity, now.Queue.MaxWait.D()).
			Layer()
	})(balancer)
}

// newResolver returns a resolver for s's endpoints, and the name to pass to it.
func (g *gateway) newResolver(ctx context.Context, s *upstream) (resolve.Resolver, string, error) {
	c := s.settings.Get()
	switch name := string(c.Name); {
	case c.Static != nil:
		// Static endpoints may change without a new service.
		addresses := static.New(nil)
		s.settings.Follow(ctx, func(now *config.Service) {
			endpoints, err := staticEndpoints(now.Static)
			if err != nil {
				g.log.Error("service without endpoints", "service", now.Name, "err", err)
			}
			addresses.Set(name, endpoints...)
		})
		return addresses, name, nil
	case c.DNS != nil:
		return resolve.ServeStale(dns.New(), resolve.StalePolicy{}), c.DNS.Name, nil
	case c.Linkerd != nil:
		conn, err := grpc.NewClient(string(c.Linkerd.Controller), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, name, err
		}
		// The connection belongs to this service.
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		return resolve.ServeStale(linkerd.New(conn), resolve.StalePolicy{}), string(c.Linkerd.Name), nil
	}
	client, err := kubernetesClient(c.Kubernetes.Kubeconfig)
	if err != nil {
		return nil, c.Kubernetes.Name, err
	}
	return resolve.ServeStale(k8s.New(client), resolve.StalePolicy{}), c.Kubernetes.Name, nil
}

// kubernetesClient returns a client for the API server in kubeconfig, or in the cluster if it is nil.
func kubernetesClient(kubeconfig *config.File) (kubernetes.Interface, error) {
	cfg, err := kube.ClientConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

// failed returns a resolver that fails with err for every name.
func failed(err error) resolve.Resolver {
	return resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			// The sequence yields once, because the error will not change.
			yield(resolve.Update{}, fmt.Errorf("%w: %w", resolve.ErrUnresolvable, err))
		}
	})
}

// newEndpoint returns a function that makes the service for one of target's endpoints, with the
// configured protocol, TLS and limits. Health checks bypass the request limit, because an
// endpoint at its limit is not unhealthy.
func (g *gateway) newEndpoint(target *upstream) discover.MakeService[*http.Request, *http.Response] {
	// These settings are part of the service's Version, so they cannot change during its life.
	s := target.settings.Get()
	opts := []httplayer.EndpointOption{httplayer.WithConnectTimeout(s.ConnectTimeout.D())}
	switch s.Protocol {
	case "HTTP1":
		opts = append(opts, httplayer.WithHTTP1())
	case "HTTP2":
		opts = append(opts, httplayer.WithHTTP2())
	}
	if s.TLS != nil {
		opts = append(opts, httplayer.WithTLS(s.TLS.Config()))
	} else {
		opts = append(opts, httplayer.WithCleartextHTTPS()) // clients' TLS ends at the gateway
	}
	if n := s.CircuitBreakers.MaxConnections; n > 0 {
		opts = append(opts, httplayer.WithMaxConns(n))
	}
	// The function makes the service for one endpoint. Clip makes append copy opts, which all endpoints share.
	newChecked := withHealthCheck(s.HealthCheck, target.health, func(ctx context.Context, t discover.Target) httplayer.Service {
		e := t.Endpoint
		endpointOpts := opts
		if e.Protocol == resolve.H2 && s.Protocol == "Auto" {
			endpointOpts = append(slices.Clip(endpointOpts), httplayer.WithHTTP2())
		}
		if path, ok := e.Labels[socketLabel]; ok && s.Static != nil {
			endpointOpts = append(slices.Clip(endpointOpts), httplayer.WithDialContext(dialSocket(path)))
		}
		if e.PingInterval > 0 {
			endpointOpts = append(slices.Clip(endpointOpts), httplayer.WithPing(e.PingInterval, e.PingTimeout))
		}
		if e.PingWhileIdle {
			endpointOpts = append(slices.Clip(endpointOpts), httplayer.WithPingWhileIdle())
		}
		return httplayer.NewStack().WithTarget(string(s.Name)).
			With("authority", httplayer.OverrideAuthority(e.Authority)).
			Service(httplayer.NewEndpoint(ctx, e.Addr.String(), endpointOpts...))
	})
	return func(ctx context.Context, t discover.Target) httplayer.Service {
		e := t.Endpoint
		st := httplayer.NewStack().WithTarget(string(s.Name))
		return setting.Layer(target.settings, func(now *config.Service) httplayer.Layer {
			if n := now.CircuitBreakers.MaxRequests; n > 0 {
				return st.Limit(n).Layer()
			}
			return nil
		})(st.
			With("trace", g.tracing.attempt(s.Name, e.Addr.String())).
			With("tap", tap.Layer(g.tap, httplayer.HTTP{}, tap.Outbound, tap.WithDestination(e.Addr, labelsOf(s, e)))).
			Service(newChecked(ctx, t)))
	}
}

// withHealthCheck returns mk, but each endpoint that it makes is also checked in the background,
// as h configures. If h is nil, nothing is checked.
func withHealthCheck(
	h *config.HealthCheck, observer *serviceHealth, mk discover.MakeService[*http.Request, *http.Response],
) discover.MakeService[*http.Request, *http.Response] {
	if h == nil {
		return mk
	}
	// Without a path or gRPC service, a connection is enough.
	check := httpclient.CheckTCP()
	switch {
	case h.Path != "":
		request := httpclient.HTTPCheck{Path: string(h.Path), Method: string(h.Method), Host: h.Hostname, Header: make(http.Header)}
		for _, f := range h.Headers {
			request.Header.Add(string(f.Name), string(f.Value))
		}
		for _, status := range h.ExpectedStatuses {
			request.Statuses = append(request.Statuses, int(status))
		}
		check = httpclient.CheckRequest(request)
	case h.GRPC != nil:
		check = httpclient.CheckGRPC(string(*h.GRPC))
	}
	policy := healthPolicy(h)
	// observer makes the result part of the service's health.
	policy.OnChange = func(t discover.Target, err error) { observer.checked(t.Endpoint.ID, err) }
	return discover.WithHealthCheck(mk, check, policy)
}

// healthPolicy converts the configuration of health checks.
func healthPolicy(h *config.HealthCheck) discover.HealthPolicy {
	return discover.HealthPolicy{
		Interval: h.Interval.D(), Timeout: h.Timeout.D(), Healthy: h.HealthyThreshold, Unhealthy: h.UnhealthyThreshold,
	}
}

// session returns a layer for sticky sessions, or nil if p is nil.
func session(p *config.SessionPersistence) httplayer.Layer {
	if p == nil {
		return nil
	}
	return httplayer.StickySession(string(p.SessionName))
}

// labelsOf returns the labels that tap shows for the endpoint e: its own, and the label
// "service", unless e has one already.
func labelsOf(s *config.Service, e resolve.Endpoint) map[string]string {
	labels := map[string]string{"service": string(s.Name)}
	maps.Copy(labels, e.Labels)
	return labels
}

// policy converts the fields of s that concern its balancer.
func policy(s *config.Service) balance.Policy {
	p := balance.Policy{SlowStart: s.LoadBalancer.SlowStart.D()}
	// Peak EWMA is the balancer's default, for which no field is set.
	switch s.LoadBalancer.Policy {
	case "LeastRequest":
		p.Cost = balance.LeastRequest
	case "RoundRobin":
		p.Picker = balance.RoundRobin()
	case "Random":
		p.Picker = balance.Random()
	case "ConsistentHash":
		p.Picker = balance.ConsistentHash(0) // the default bound of an endpoint's load
	}
	// Requests of a session need the same endpoint, whatever policy is configured.
	if s.SessionPersistence != nil {
		p.Picker = balance.ConsistentHash(0)
	}
	if o := s.OutlierDetection; o != nil {
		p.OutlierDetection = balance.OutlierDetection{
			ConsecutiveFailures: o.ConsecutiveFailures, Interval: o.Interval.D(), BaseEjectionTime: o.BaseEjectionTime.D(),
			// MinReady is the share that must stay, as a fraction.
			MinReady: 1 - o.MaxEjectionPercent/100,
		}
	}
	return p
}

// affinity returns a layer that sends requests with the same hash key to the same endpoint, or
// nil if h is nil. Requests without a key may go anywhere.
func affinity(h *config.Hash) httplayer.Layer {
	if h == nil {
		return nil
	}
	return func(next httplayer.Service) httplayer.Service { return &hashed{Service: next, by: h} }
}

// hashed sets the affinity of requests to the hash of a value in them, which by selects.
type hashed struct {
	httplayer.Service

	by *config.Hash
}

// Call adds the key's hash to ctx, by which the balancer always chooses the same endpoint. An empty key means any.
func (s *hashed) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if key := s.key(req); key != "" {
		sum := fnv.New64a() // all gateways must compute the same hash
		_, _ = sum.Write([]byte(key))
		ctx = layer.WithAffinity(ctx, sum.Sum64())
	}
	return s.Service.Call(ctx, req)
}

// key returns the value that is hashed. If it is "", the request has no affinity.
func (s *hashed) key(req *http.Request) string {
	switch {
	case s.by.Header != "":
		return req.Header.Get(string(s.by.Header))
	case s.by.Cookie != "":
		// A client without the cookie has no affinity.
		if c, err := req.Cookie(string(s.by.Cookie)); err == nil {
			return c.Value
		}
		return ""
	case s.by.QueryParam != "":
		return req.URL.Query().Get(s.by.QueryParam)
	}
	// Without a setting, requests of the same client address belong together.
	return httplayer.ClientFromContext(req.Context()).String()
}
