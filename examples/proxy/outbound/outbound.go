// Package outbound is the path of a request through the proxy. Read New from
// top to bottom; each function below is the next stretch of the way.
//
//	limit ─▶ router ─▶ profile ─▶ retry, ─▶ queue ─▶ balancer ─▶ metrics ─▶ tap ─▶ endpoint
//	         target    route,     timeout   bounded  cheapest,              live    one
//	         by name   split      by route  wait     peak EWMA              events  address
//
// Where the profile names the one endpoint that a target is served at, there is
// no balancer. A profile that calls a target opaque changes nothing: what comes
// here are requests, taken apart already. Connections that are to be forwarded
// as they are need a listener that knows where they were going to; package
// profiles has Dispatch for it, and layer/tcplayer the rest.
package outbound

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	profilesource "github.com/gotower/gotower/profiles/linkerd"
	"github.com/gotower/gotower/resolve"
	destination "github.com/gotower/gotower/resolve/linkerd"
	"github.com/gotower/gotower/tap"
)

// Config is what the path can be told. The zero value of a field is no limit,
// or the default of the package that it is for.
type Config struct {
	MaxInFlight    int
	QueueCapacity  int           // requests that may wait for one target
	FailFast       time.Duration // how long they may wait
	DiscoveryIdle  time.Duration // how long a target without requests is kept
	ConnectTimeout time.Duration
	PoolIdle       time.Duration // how long an HTTP/1.1 connection is kept unused
	Backoff        layer.Backoff // between attempts to connect, to endpoints and to the controller

	ContextToken string                 // for the controller
	Profiled     []profilesource.Option // of which targets profiles are asked for: Names and Networks
	SourceLabels map[string]string      // what tap shows of the clients of this proxy
	Quiet        bool                   // no l5d-proxy-error in answers

	Taps  *tap.Registry
	Meter func(ctx context.Context, t discover.Target) layer.Instruments // until ctx ends
	Log   *slog.Logger                                                   // not nil

	// RouteMeter counts the requests of a target's route, and their tries,
	// until ctx ends.
	RouteMeter func(ctx context.Context, target string, route profiles.Route) (requests, tries layer.Instruments)

	// BalancerMeter counts the endpoints of a target, until ctx ends.
	BalancerMeter func(ctx context.Context, target string) balance.Instruments
}

// New returns the path. What it keeps up in the background (watches of the
// controller, connections) lives as long as ctx.
func New(ctx context.Context, controller grpc.ClientConnInterface, c Config) httplayer.Service {
	if c.Meter == nil {
		c.Meter = func(context.Context, discover.Target) layer.Instruments { return layer.Instruments{} }
	}
	if c.RouteMeter == nil {
		c.RouteMeter = func(context.Context, string, profiles.Route) (requests, tries layer.Instruments) {
			return layer.Instruments{}, layer.Instruments{}
		}
	}
	if c.BalancerMeter == nil {
		c.BalancerMeter = func(context.Context, string) balance.Instruments { return balance.Instruments{} }
	}
	o := &outbound{
		Config: c,
		resolver: resolve.KeepLastGood(
			destination.New(controller, destination.ContextToken(c.ContextToken), destination.StreamLimits(destination.Limits{}),
				destination.Backoff(c.Backoff), destination.Logger(c.Log)),
			resolve.KeepPolicy{}),
		profiles: profilesource.New(controller, slices.Concat(c.Profiled, []profilesource.Option{
			profilesource.ContextToken(c.ContextToken), profilesource.Backoff(c.Backoff), profilesource.Logger(c.Log),
		})...),
	}
	o.logicals = layer.NewCache(ctx, o.logical, layer.CachePolicy{Idle: c.DiscoveryIdle})
	o.concretes = layer.NewCache(ctx, o.concrete, layer.CachePolicy{Idle: c.DiscoveryIdle})
	o.forwards = layer.NewCache(ctx, o.forwarded, layer.CachePolicy{Idle: c.DiscoveryIdle})

	return httplayer.NewStack().
		With("explain", tap.Explain[*http.Request, *http.Response](c.Taps)).
		Limit(c.MaxInFlight).
		Service(o.logicals.Router(Target))
}

type outbound struct {
	Config
	resolver  resolve.Resolver
	profiles  profiles.Source
	logicals  *layer.Cache[string, *http.Request, *http.Response]
	concretes *layer.Cache[string, *http.Request, *http.Response]
	forwards  *layer.Cache[place, *http.Request, *http.Response]
}

// logical serves a target by the name that the application used: its profile
// finds the route, says how long a request may take and whether one that failed
// is sent again, and splits the traffic.
func (o *outbound) logical(ctx context.Context, target string) httplayer.Service {
	return profiles.New(ctx, target, o.profiles, httplayer.Access{}, o.concretes.Service,
		profiles.Forward(o.forward(target)),
		profiles.Standard(httplayer.Resend{}, httplayer.Edit{}, httplayer.Classify),
		profiles.Measured[*http.Request, *http.Response](func(route profiles.Route) (requests, tries layer.Instruments) {
			return o.RouteMeter(ctx, target, route)
		}),
		profiles.InitialWait[*http.Request, *http.Response](initialProfile),
		profiles.Logger[*http.Request, *http.Response](o.Log))
}

// initialProfile is how long requests wait for the first profile of a target;
// then they are served without.
const initialProfile = 500 * time.Millisecond

// concrete serves a target by its endpoints. Here, and only here, requests
// wait.
func (o *outbound) concrete(ctx context.Context, target string) httplayer.Service {
	return httplayer.NewStack(layer.For[*http.Response](target)).
		Queue(o.QueueCapacity, o.FailFast).
		Service(balance.Resolve(ctx, o.resolver, target, o.endpoint,
			balance.Measured[*http.Response](o.BalancerMeter(ctx, target))))
}

// endpoint serves one address.
func (o *outbound) endpoint(ctx context.Context, t discover.Target) httplayer.Service {
	addr := t.Endpoint.Addr
	return httplayer.NewStack().
		Metrics(o.Meter(ctx, t)).
		With("tap", tap.Layer(o.Taps, httplayer.Access{}, tap.Outbound,
			tap.SourceLabels(with(o.SourceLabels, "tls", "loopback")),
			tap.Destination(addr, with(t.Endpoint.Labels, "tls", inClear(t.Endpoint))))).
		With("override", withoutOverride).
		Service(httplayer.NewEndpoint(ctx, addr.String(), o.connection(t.Endpoint)...))
}

func (o *outbound) connection(e resolve.Endpoint) []httplayer.EndpointOption {
	opts := []httplayer.EndpointOption{
		httplayer.ConnectTimeout(o.ConnectTimeout),
		httplayer.IdleTimeout(o.PoolIdle),
		httplayer.Backoff(o.Backoff),
	}
	if e.Protocol == resolve.H2 {
		opts = append(opts, httplayer.H2())
	}
	return opts
}

// inClear says why an endpoint is spoken to in clear, in linkerd's words.
func inClear(e resolve.Endpoint) string {
	if e.ServerName == "" {
		return "not_provided_by_service_discovery"
	}
	return "disabled"
}

func with(labels map[string]string, key, value string) map[string]string {
	more := maps.Clone(labels)
	if more == nil {
		more = map[string]string{}
	}
	more[key] = value
	return more
}

// Handler is the path as a server sees it.
func Handler(svc httplayer.Service, c Config) http.Handler {
	return httplayer.Handler(svc, httplayer.InformationalHeaders(!c.Quiet), httplayer.Logger(c.Log))
}
