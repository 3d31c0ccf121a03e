// Command demo runs an emoji-voting application behind gotower's proxy, and shows a live
// table of its requests. All of it runs in one process and on loopback. One replica is
// slow, one stops and starts repeatedly, and one method always fails. The table shows which
// replicas and which method these are.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/demo/emojivoto"
	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

const (
	loopback = "127.0.0.1:0"
	// grace is how long open requests may take when the program ends. It is longer than the 5 s
	// that net/http waits for a connection's first request.
	grace = 6 * time.Second

	// botTap is where the tap of the bot's proxy listens, and webTap where that of the web
	// front's proxy does. If an address is in use, a free port is used instead.
	botTap = "127.0.0.1:4190"
	webTap = "127.0.0.1:4290"
)

func main() {
	// The bot and the proxies end when the user interrupts.
	ctx, stop := cli.Interrupted()
	o, err := parse(os.Args[1:], os.Stderr)
	if err == nil {
		err = run(ctx, o, os.Stdout)
	}
	stop()
	os.Exit(cli.Status(os.Stderr, "demo", err))
}

// options holds the flags' values.
type options struct {
	duration time.Duration
	output   string
	rate     float64
}

// The bot's rate is limited to these requests per second.
const minRate, maxRate = 0.001, 1e6

// parse returns the options in args. It writes the help to help, and returns flag.ErrHelp, if args ask for it.
func parse(args []string, help io.Writer) (o options, err error) {
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	cli.Describe(f, `demo runs an emoji-voting application behind gotower's proxy, in one process and on loopback, and shows a
live table of its requests. One replica is slow, one stops and starts repeatedly, and one method always
fails: the table shows which. After q or an interrupt, the final table is printed.`)
	f.DurationVar(&o.duration, "for", 0, "stop after this time (0: when interrupted)")
	f.StringVar(&o.output, "o", "", "json: print only the final table, as JSON")
	f.Float64Var(&o.rate, "rate", 40, "requests per second of the bot")
	if err := cli.Parse(f, args, help); err != nil {
		return o, err
	}
	switch {
	case o.output != "" && o.output != "json":
		err = fmt.Errorf("-o %s: must be json", o.output)
	case o.duration < 0:
		err = fmt.Errorf("-for %v: must not be negative", o.duration)
	case !(o.rate >= minRate && o.rate <= maxRate): // NaN, too
		err = fmt.Errorf("-rate %v: must be from %v to %.0f requests per second", o.rate, minRate, maxRate)
	}
	if err != nil {
		err = cli.Misuse(err)
	}
	return o, err
}

// run starts all servers and the bot, and shows the requests. It returns when ctx ends, the
// user quits, or the duration in o is over.
func run(ctx context.Context, o options, out *os.File) error {
	// The log would disturb the table, so it is discarded.
	log := slog.New(slog.DiscardHandler)
	// The servers must outlive ctx, because the bot's last requests are still open when it ends.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	running, background := errgroup.WithContext(background)
	d, err := start(background, running, o, log)
	if err == nil {
		// The visit ends with ctx, after the duration, or when a server has failed.
		visiting, cancel := bounded(ctx, o.duration)
		context.AfterFunc(background, cancel) // after a failure
		err = d.show(visiting, o, out)
		cancel()
	}
	// Only now do the servers end.
	stop()
	return errors.Join(err, running.Wait())
}

// bounded returns a context that ends after d, or only with ctx if d is 0.
func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d > 0 {
		return context.WithTimeout(ctx, d)
	}
	return context.WithCancel(ctx)
}

// demo consists of the bot, its HTTP client, and the proxies through which requests pass.
type demo struct {
	client  *http.Client
	bot     *emojivoto.Bot
	proxies []*sidecar.Proxy
}

// start starts the controller, the application and the proxies. Their goroutines belong to running,
// and end when ctx ends.
func start(ctx context.Context, running *errgroup.Group, o options, log *slog.Logger) (*demo, error) {
	// The servers start in the order in which others need their addresses.
	ctl := controller.New(log)
	var g serve.Group
	ctlAddr := g.GRPC("destination", loopback, func(s *grpc.Server) { ctl.Register(s) }, ctl.Stop)
	if err := g.Err(); err != nil {
		return nil, err
	}
	running.Go(func() error { return g.Run(ctx, grace, log) })

	// Every replica is added to endpoints when it starts.
	app := &application{
		controller: ctl, running: running, log: log,
		endpoints: map[string]map[string]controller.Endpoint{},
	}
	if err := app.backends(ctx); err != nil {
		return nil, err
	}
	// web's proxy starts before web, which sends its calls through it.
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
		client: client,
		// With the constant seed 1, each start sends the same sequence of requests.
		bot:     emojivoto.NewBot(client, "http://"+webName, o.rate, 1),
		proxies: []*sidecar.Proxy{botProxy, webProxy},
	}, nil
}

// httpThrough returns an HTTP client that sends all requests through the proxy at this address.
func httpThrough(proxy string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: dialler(proxy), MaxIdleConnsPerHost: 64,
	}}
}

// show runs the bot and shows the table of requests, until ctx ends or the user quits.
func (d *demo) show(ctx context.Context, o options, out *os.File) error {
	processes, closeAll, err := d.taps()
	if err != nil {
		return err
	}
	defer closeAll()
	// The bot ends when the table ends, and its requests complete before the taps close.
	voting, stop := context.WithCancel(ctx)
	voted := make(chan struct{})
	go func() {
		defer close(voted)
		d.bot.Run(voting)
		d.client.CloseIdleConnections() // the proxy would wait for unused ones
	}()
	config := top.Config{
		Title: "emojivoto behind gotower",
		// proxies[1] is the proxy of the web front, which calls the voting service.
		Note: fmt.Sprintf("The votes for one emoji fail. To find it:\n"+
			"  go run ./examples/tapctl tap --path /emojivoto.v1.VotingService/ %s\n"+
			"  a browser: http://%s/view/", d.proxies[1].Tap, d.proxies[1].Admin),
		Processes: processes,
		Request:   &tappb.TopRequest{},
	}
	// Live shows a table on the terminal, and Collect only collects the rows.
	show := top.Live
	if o.output == "json" {
		show = func(ctx context.Context, _ *os.File, c top.Config) ([]*tappb.Row, error) { return top.Collect(ctx, c) }
	}
	rows, err := show(ctx, out, config)
	stop()
	<-voted
	// An error comes first, because the rows are incomplete then.
	switch {
	case err != nil:
		return err
	case o.output == "json":
		return top.WriteJSON(out, rows, top.Columns{})
	}
	return top.WriteScreen(out, rows, top.Columns{})
}

// taps connects to the tap of each proxy. closeAll closes the connections.
func (d *demo) taps() (all []tap.Process, closeAll func(), err error) {
	var conns []*grpc.ClientConn
	closeAll = func() {
		for _, c := range conns {
			c.Close()
		}
	}
	for _, p := range d.proxies {
		conn, err := grpc.NewClient("passthrough:///"+p.Tap, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			// The caller gets no closeAll to call.
			closeAll()
			return nil, nil, fmt.Errorf("tap %s: %w", p.Tap, err)
		}
		conns = append(conns, conn)
		all = append(all, tap.Process{Name: p.Tap, Conn: conn})
	}
	return all, closeAll, nil
}
