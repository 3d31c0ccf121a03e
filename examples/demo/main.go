// Command demo runs an emoji-voting application behind gotower's proxy, in one
// process and on loopback, and shows a live table of its requests: several
// replicas, one of them slow, one that comes and goes, and one method that
// always fails. Which one?
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/demo/emojivoto"
	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
)

const (
	loopback = "127.0.0.1:0"
	// net/http waits for 5 s for the first request of a connection.
	grace = 6 * time.Second

	// Where the taps of the two proxies are, if nothing else is there.
	botTap = "127.0.0.1:4190"
	webTap = "127.0.0.1:4290"
)

func main() {
	var o options
	flag.DurationVar(&o.duration, "for", 0, "stop after this time (0: when interrupted)")
	flag.StringVar(&o.output, "o", "", "json: print the final table as JSON, and nothing else")
	flag.Float64Var(&o.rate, "rate", 40, "requests a second that the bot makes")
	flag.Parse()
	if o.output != "" && o.output != "json" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "demo: -o takes json, and there are no arguments")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

type options struct {
	duration time.Duration
	output   string
	rate     float64
}

// run starts everything, has the bot vote, and shows what it sees until ctx or
// the time ends.
func run(ctx context.Context, o options, out *os.File) error {
	log := slog.New(slog.DiscardHandler)
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	running, background := errgroup.WithContext(background)
	d, err := start(background, running, o, log)
	if err == nil {
		visiting, cancel := bounded(ctx, o.duration)
		context.AfterFunc(background, cancel) // something failed
		err = d.show(visiting, o, out)
		cancel()
	}
	stop()
	return errors.Join(err, running.Wait())
}

func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d > 0 {
		return context.WithTimeout(ctx, d)
	}
	return context.WithCancel(ctx)
}

// demo is what start started.
type demo struct {
	client  *http.Client
	bot     *emojivoto.Bot
	proxies []*sidecar.Proxy
	table   top.Table
}

// start starts controller, application and proxies. They serve until ctx ends;
// then running ends.
func start(ctx context.Context, running *errgroup.Group, o options, log *slog.Logger) (*demo, error) {
	ctl := controller.New(log)
	var g serve.Group
	ctlAddr := g.GRPC("destination", loopback, func(s *grpc.Server) { ctl.Register(s) }, ctl.Stop)
	if err := g.Err(); err != nil {
		return nil, err
	}
	running.Go(func() error { return g.Run(ctx, grace, log) })

	app := &application{
		controller: ctl, running: running, log: log,
		where: map[string]map[string]controller.Endpoint{},
	}
	if err := app.backends(ctx); err != nil {
		return nil, err
	}
	webProxy, err := app.proxy(ctx, "web-0", ctlAddr, webTap)
	if err != nil {
		return nil, err
	}
	if err := app.web(ctx, webProxy.Addr); err != nil {
		return nil, err
	}
	botProxy, err := app.proxy(ctx, "bot", ctlAddr, botTap)
	if err != nil {
		return nil, err
	}
	client := httpThrough(botProxy.Addr)
	return &demo{
		client:  client,
		bot:     emojivoto.NewBot(client, "http://"+webName, o.rate, 1),
		proxies: []*sidecar.Proxy{botProxy, webProxy},
	}, nil
}

// httpThrough returns a client that sends everything to a proxy.
func httpThrough(proxy string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: dialler(proxy), MaxIdleConnsPerHost: 64,
	}}
}

// show has the bot vote until ctx ends, and shows the table.
func (d *demo) show(ctx context.Context, o options, out *os.File) error {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	watchers, watching := errgroup.WithContext(watching)
	for _, p := range d.proxies {
		watchers.Go(func() error { return d.watch(watching, p.Tap) })
	}
	voted := make(chan struct{})
	go func() {
		defer close(voted)
		d.bot.Run(ctx)
		d.client.CloseIdleConnections() // some were never used, and the proxy would wait for them
	}()
	header := fmt.Sprintf("emojivoto behind gotower. Somebody's votes fail: whose? Look closer with\n"+
		"  go run ./examples/tapctl tap --path /emojivoto.v1.VotingService/ %s\n"+
		"  curl http://%s/stack", d.proxies[1].Tap, d.proxies[1].Admin)
	var err error
	if o.output != "json" {
		err = top.Live(ctx, out, &d.table, header)
	}
	<-voted
	rows := d.table.Rows()
	stop()
	err = errors.Join(err, watchers.Wait())
	if o.output == "json" {
		return errors.Join(err, top.WriteJSON(out, rows))
	}
	return errors.Join(err, top.Write(out, rows, 0, 0))
}

// watch adds all that the proxy with this tap sees to the table.
func (d *demo) watch(ctx context.Context, addr string) error {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("tap %s: %w", addr, err)
	}
	defer conn.Close()
	req := &pb.ObserveRequest{Limit: math.MaxUint32, Match: match.All()}
	for e, err := range tap.Observe(ctx, conn, req) {
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		d.table.Add(addr, e)
	}
	return nil
}
