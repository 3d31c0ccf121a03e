package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"iter"
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

// newService returns the service for the configuration s: a queue, and a balancer over the
// endpoints of s. The queue is the only place where a request waits for an endpoint. The
// background work of the service ends when ctx ends.
func (g *gateway) newService(ctx context.Context, s *config.Service) httplayer.Service {
	if s.DirectResponse != nil {
		return direct(s.DirectResponse)
	}
	resolver, name, err := newResolver(ctx, s)
	if err != nil {
		g.log.Error("service without endpoints", "service", s.Name, "err", err)
		resolver = failed(err)
	}
	to := g.metrics.Layer(string(s.Name))
	return httplayer.NewStack(httplayer.WithTarget(string(s.Name)), httplayer.WithMetrics(to)).
		With("hash", affinity(s.LoadBalancer.Hash)).
		With("sticky_session", session(s.SessionPersistence)).
		Queue(s.Queue.Capacity, s.Queue.MaxWait.D()).
		Service(balance.Resolve(ctx, resolver, name,
			g.newEndpoint(s), balance.WithPolicy[*http.Response](policy(s)),
			balance.WithMetrics[*http.Response](g.metrics.Balance(string(s.Name)))))
}

// newResolver returns the resolver that finds the endpoints of s, and the name that the
// caller must pass to the resolver.
func newResolver(ctx context.Context, s *config.Service) (resolve.Resolver, string, error) {
	switch name := string(s.Name); {
	case s.Static != nil:
		addresses := make([]string, 0, len(s.Static.Addresses))
		for _, a := range s.Static.Addresses {
			addresses = append(addresses, string(a))
		}
		endpoints, err := static.Endpoints(addresses...)
		return static.New(map[string][]resolve.Endpoint{name: endpoints}), name, err
	case s.DNS != nil:
		return resolve.ServeStale(dns.New(), resolve.StalePolicy{}), s.DNS.Name, nil
	case s.Linkerd != nil:
		conn, err := grpc.NewClient(string(s.Linkerd.Controller), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, name, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		return resolve.ServeStale(linkerd.New(conn), resolve.StalePolicy{}), string(s.Linkerd.Name), nil
	}
	client, err := kubernetesClient(s.Kubernetes.Kubeconfig)
	if err != nil {
		return nil, s.Kubernetes.Name, err
	}
	return resolve.ServeStale(k8s.New(client), resolve.StalePolicy{}), s.Kubernetes.Name, nil
}

func kubernetesClient(kubeconfig *config.File) (kubernetes.Interface, error) {
	cfg, err := kube.ClientConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

// failed returns a resolver that yields err for every name.
func failed(err error) resolve.Resolver {
	return resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			yield(resolve.Update{}, fmt.Errorf("%w: %w", resolve.ErrUnresolvable, err))
		}
	})
}

// newEndpoint returns a function that makes a service for one endpoint of s. The service
// sends requests to the endpoint, with the protocol, the TLS and the limits of s. Health checks are
// sent below the limit of requests, because a full limit does not mean that the endpoint is unhealthy.
func (g *gateway) newEndpoint(s *config.Service) discover.MakeService[*http.Request, *http.Response] {
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
		opts = append(opts, httplayer.WithCleartextHTTPS()) // TLS of clients ends at the gateway
	}
	if n := s.CircuitBreakers.MaxConnections; n > 0 {
		opts = append(opts, httplayer.WithMaxConns(n))
	}
	checked := withHealthCheck(s.HealthCheck, func(ctx context.Context, t discover.Target) httplayer.Service {
		e, own := t.Endpoint, opts
		if e.Protocol == resolve.H2 && s.Protocol == "Auto" {
			own = append(slices.Clip(own), httplayer.WithHTTP2())
		}
		if e.PingInterval > 0 {
			own = append(slices.Clip(own), httplayer.WithPing(e.PingInterval, e.PingTimeout))
		}
		return httplayer.NewStack(httplayer.WithTarget(string(s.Name))).
			With("authority", httplayer.OverrideAuthority(e.Authority)).
			Service(httplayer.NewEndpoint(ctx, e.Addr.String(), own...))
	})
	return func(ctx context.Context, t discover.Target) httplayer.Service {
		e, st := t.Endpoint, httplayer.NewStack(httplayer.WithTarget(string(s.Name)))
		if n := s.CircuitBreakers.MaxRequests; n > 0 {
			st = st.Limit(n)
		}
		return st.
			With("trace", g.tracing.attempt(s.Name, e.Addr.String())).
			With("tap", tap.Layer(g.tap, httplayer.Accessor{}, tap.Outbound, tap.WithDestination(e.Addr, labelsOf(s, e)))).
			Service(checked(ctx, t))
	}
}

// withHealthCheck returns a function that makes the service of an endpoint as mk does, and also
// checks the endpoint in the background. The argument h specifies the check. If h is nil,
// withHealthCheck returns mk.
func withHealthCheck(
	h *config.HealthCheck, mk discover.MakeService[*http.Request, *http.Response],
) discover.MakeService[*http.Request, *http.Response] {
	if h == nil {
		return mk
	}
	check := httpclient.CheckTCP()
	switch {
	case h.Path != "":
		check = httpclient.CheckHTTP(string(h.Path))
	case h.GRPC != nil:
		check = httpclient.CheckGRPC(string(*h.GRPC))
	}
	return discover.WithHealthCheck(mk, check, discover.HealthPolicy{
		Interval: h.Interval.D(), Timeout: h.Timeout.D(), Healthy: h.HealthyThreshold, Unhealthy: h.UnhealthyThreshold,
	})
}

// session returns the layer that applies p, the field sessionPersistence of a service. It
// returns nil if p is nil.
func session(p *config.SessionPersistence) httplayer.Layer {
	if p == nil {
		return nil
	}
	return httplayer.StickySession(string(p.SessionName))
}

// labelsOf returns the labels that package tap shows for the endpoint e of s. These are the
// labels of e, and the label "service" with the name of s. A label "service" of e takes
// precedence.
func labelsOf(s *config.Service, e resolve.Endpoint) map[string]string {
	labels := map[string]string{"service": string(s.Name)}
	maps.Copy(labels, e.Labels)
	return labels
}

// policy converts the fields loadBalancer, sessionPersistence and outlierDetection of s to
// the policy of its balancer.
func policy(s *config.Service) balance.Policy {
	p := balance.Policy{SlowStart: s.LoadBalancer.SlowStart.D()}
	switch s.LoadBalancer.Policy {
	case "LeastRequest":
		p.Cost = balance.LeastRequest
	case "RoundRobin":
		p.Picker = balance.RoundRobin()
	case "Random":
		p.Picker = balance.Random()
	case "ConsistentHash":
		p.Picker = balance.ConsistentHash(0)
	}
	if s.SessionPersistence != nil {
		p.Picker = balance.ConsistentHash(0)
	}
	if o := s.OutlierDetection; o != nil {
		p.OutlierDetection = balance.OutlierDetection{
			ConsecutiveFailures: o.ConsecutiveFailures, Interval: o.Interval.D(), BaseEjectionTime: o.BaseEjectionTime.D(),
			MinReady: 1 - o.MaxEjectionPercent/100,
		}
	}
	return p
}

// affinity returns the layer that applies h, the field hash of a load balancer. It returns
// nil if h is nil. The layer sends requests with the same hash key to the same endpoint.
// Requests without a key may be sent to any endpoint.
func affinity(h *config.Hash) httplayer.Layer {
	if h == nil {
		return nil
	}
	return func(next httplayer.Service) httplayer.Service { return &hashed{Service: next, by: h} }
}

type hashed struct {
	httplayer.Service

	by *config.Hash
}

func (s *hashed) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if key := s.key(req); key != "" {
		sum := fnv.New64a() // the same in all gateways
		_, _ = sum.Write([]byte(key))
		ctx = layer.WithAffinity(ctx, sum.Sum64())
	}
	return s.Service.Call(ctx, req)
}

func (s *hashed) key(req *http.Request) string {
	switch {
	case s.by.Header != "":
		return req.Header.Get(string(s.by.Header))
	case s.by.Cookie != "":
		if c, err := req.Cookie(string(s.by.Cookie)); err == nil {
			return c.Value
		}
		return ""
	case s.by.QueryParam != "":
		return req.URL.Query().Get(s.by.QueryParam)
	}
	return httplayer.ClientFromContext(req.Context()).String()
}
