// Package sidecar is a whole proxy: the path of package outbound, and what
// surrounds it. A listener for requests, one for who watches them (tap), one
// for the operator (admin).
package sidecar

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/examples/proxy/outbound"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/view"
)

// Config is what a proxy has to be told.
type Config struct {
	Listen      string // ip:port for HTTP/1.1 and h2c
	Admin       string // ip:port for /live /ready /metrics /stack /view/
	Tap         string // ip:port for io.linkerd.proxy.tap.Tap, to loopback clients
	Title       string // what the page of admin calls this proxy
	Fallback    bool   // any port of loopback will do where one of these is taken
	Destination string // host:port of the destination controller, in clear

	Grace    time.Duration // how long open requests may take to end
	Outbound outbound.Config
}

// eventRate is a thousand requests a second, for three hundredths of a
// processor. Who watches more has Top.
const eventRate = 3000

// Proxy is bound to its addresses, and serves while Run runs.
type Proxy struct {
	Addr, Admin, Tap string

	run func(context.Context) error
}

// New binds a proxy. Run it, also if only to let it go.
func New(c Config, log *slog.Logger) (*Proxy, error) {
	controller, err := outbound.Dial(c.Destination, c.Outbound.Backoff)
	if err != nil {
		return nil, err
	}
	taps, meters := new(tap.Registry), newMeters()
	c.Outbound.Taps, c.Outbound.Log = taps, log
	c.Outbound.Meter, c.Outbound.RouteMeter, c.Outbound.BalancerMeter = meters.endpoint, meters.route, meters.balancer

	// What the path does in the background ends after the last request.
	background, end := context.WithCancel(context.Background())
	svc := outbound.New(background, controller, c.Outbound)

	var fallback []string
	if c.Fallback {
		fallback = []string{"127.0.0.1:0"}
	}
	var g serve.Group
	describe := func() layer.Node { return layer.Describe(svc) }
	tapServer := tap.NewServer(taps, tap.Describing(describe), tap.EventRate(eventRate))
	page := view.New(view.Config{Registry: taps, Describe: describe, Title: c.Title})
	p := &Proxy{
		Addr:  g.HTTP("requests", c.Listen, outbound.Handler(svc, c.Outbound), fallback...),
		Admin: g.HTTP("admin", c.Admin, admin(meters, page, describe), fallback...),
		Tap:   g.GRPC("tap", c.Tap, func(s *grpc.Server) { tapServer.Register(s) }, tapServer.Shutdown, fallback...),
	}
	p.run = func(ctx context.Context) error {
		defer controller.Close()
		defer end()
		return g.Run(ctx, c.Grace, log)
	}
	if err := g.Err(); err != nil {
		return nil, p.run(context.Background()) // it closes what was bound, and says what was not
	}
	return p, nil
}

// Run serves until ctx ends and the open requests did, or the grace period is
// over.
func (p *Proxy) Run(ctx context.Context) error { return p.run(ctx) }
