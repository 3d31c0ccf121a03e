// Command proxy is a sidecar proxy for a pod, built from gotower's packages. It proxies the
// connections that the application makes and those that clients make to it. Outbound requests are
// balanced over the endpoints that a destination controller reports. The proxy also serves tap and
// metrics.
//
// This file only reads the settings. Packages outbound and inbound contain the path of a request,
// and package sidecar assembles the proxy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/examples/proxy/logs"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// Exit codes of linkerd's proxy: scripts and operators distinguish a bad configuration (64, EX_USAGE) from other
// failures.
const (
	exitFailed    = 1
	exitBadConfig = 64
)

func main() {
	// The same binary also serves as the command that waits for another proxy.
	if args, ok := awaits(os.Args); ok {
		if err := await(args); err != nil {
			fmt.Fprintln(os.Stderr, "proxy await:", err)
			os.Exit(exitFailed)
		}
		return
	}
	s, err := read(os.Args[1:], os.LookupEnv, os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "Invalid configuration:\n%v\n\nRun with --help for the settings.\n", err)
		os.Exit(exitBadConfig)
	}
	if err := run(s); err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(exitFailed)
	}
}

// read returns the settings from the environment and from the file that the flag --config names.
// The environment overrides the file. lookup finds one variable, as os.LookupEnv does. If args ask for
// help, read prints the settings to help and returns an error that wraps flag.ErrHelp.
func read(args []string, lookup func(string) (string, bool), help io.Writer) (settings.Settings, error) {
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	// The caller prints errors, so the flag package must not.
	flags.SetOutput(io.Discard)
	file := flags.String("config", "", "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return settings.Settings{}, errors.Join(flag.ErrHelp, usage(help))
	case err != nil:
		return settings.Settings{}, err
	case flags.NArg() > 0:
		return settings.Settings{}, fmt.Errorf("%q: arguments must be flags", flags.Arg(0))
	}
	opts := []settings.Option{settings.Environ(os.Environ())}
	if *file != "" {
		content, err := os.ReadFile(*file)
		if err != nil {
			return settings.Settings{}, err
		}
		opts = append(opts, settings.File(*file, content))
	}
	s, err := settings.Read(lookup, opts...)
	// A pod that has just started has neither a private key nor a signing request for its certificate yet.
	if i := s.Identity; err == nil && i != nil && (i.Generate || i.IsNew()) {
		err = identity.Generate(i.Dir, i.ServerID)
	}
	// Check accepts a nil Identity, which means that the proxy runs without TLS.
	return s, errors.Join(err, s.Identity.Check())
}

// awaits reports whether args is a command line for [await], and returns await's arguments. There
// are two forms: "proxy await [ip:port] [timeout]", and "linkerd-await [--port=4191]
// [--timeout=2m]", which is the program that linkerd's chart runs.
func awaits(args []string) ([]string, bool) {
	// The chart's image contains this binary under linkerd-await's name, so the name selects the mode.
	if filepath.Base(args[0]) != awaitProgram {
		if len(args) > 1 && args[1] == "await" {
			return args[2:], true
		}
		return nil, false
	}
	flags := flag.NewFlagSet(awaitProgram, flag.ExitOnError)
	port := flags.String("port", "4191", "`port` of the admin server of the proxy")
	timeout := flags.String("timeout", "2m", "maximum `duration`")
	_ = flags.Parse(args[1:])
	return []string{"127.0.0.1:" + *port, *timeout}, true
}

const awaitProgram = "linkerd-await"

// await waits until a proxy is ready, and returns an error if that takes too long. args[0] is the
// proxy's admin address, by default 127.0.0.1:4191, and args[1] is the timeout, by default two
// minutes.
func await(args []string) error {
	addr := "127.0.0.1:4191"
	timeout := 2 * time.Minute
	if len(args) > 0 {
		addr = args[0]
	}
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return fmt.Errorf("address %q: must be ip:port", addr)
	}
	if len(args) > 1 {
		var err error
		if timeout, err = time.ParseDuration(args[1]); err != nil {
			return fmt.Errorf("timeout %q: must be a duration such as 30s", args[1])
		}
	}
	// The timeout applies to all attempts together.
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	tick := time.NewTicker(awaitInterval)
	defer tick.Stop()
	for {
		err := checkReady(ctx, "http://"+addr+"/ready")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the proxy at %s is not ready after %v: %w", addr, timeout, err)
		case <-tick.C:
		}
	}
}

// awaitInterval is how often await asks for /ready.
const awaitInterval = 100 * time.Millisecond

// checkReady returns nil if a GET of url succeeds with status 200.
func checkReady(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody) //nolint:gosec // the caller gives the address
	if err != nil {
		return err
	}
	rsp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req) //nolint:gosec // as above
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
	if rsp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", rsp.StatusCode)
	}
	return nil
}

// usage prints the flags and all settings.
func usage(w io.Writer) error {
	_, err := fmt.Fprintf(w, "usage: proxy [--config file.yaml]\n"+
		"       proxy await [ip:port] [timeout]   wait until the proxy with this admin address is ready\n\n"+
		"The settings are environment variables with the prefix %s, unless another prefix is shown.\n"+
		"Defaults are in brackets. A YAML file has the same names in lower case without the prefix, or nested\n"+
		"at any _, as in \"outbound: {connect_timeout: 2s}\". Variables override the file.\n\n", settings.Prefix)
	return errors.Join(err, settings.Help(w))
}

// run runs a proxy until the process receives SIGINT or SIGTERM, or the admin server receives POST
// /shutdown.
func run(s settings.Settings) error {
	level, err := logs.NewLevel(s.Log.Filter)
	if err != nil {
		return err
	}
	log, lines := cli.Log(os.Stderr, func(w io.Writer) slog.Handler { return newHandler(w, s, level) })
	defer cli.Flush(lines)
	for _, w := range s.Warnings {
		log.Warn("configuration", "warning", w)
	}
	// The zero value leaves the number of processors to the Go runtime.
	if s.Cores != (settings.Cores{}) {
		available := runtime.GOMAXPROCS(0) // already limited to the cgroup's quota
		n := s.Cores.Count(available)
		if s.Cores.Min > n {
			log.Warn("fewer processors are available than configured", "configured", s.Cores.Min)
		}
		runtime.GOMAXPROCS(n)
		log.Info("using processors", "n", n, "of", available)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p, err := sidecar.New(sidecar.Config{Settings: s, Level: level, LogLines: lines}, log)
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// newHandler returns the handler that writes the log to w, as text or JSON. Lines contain the time since now, as
// those of linkerd's proxy do.
func newHandler(w io.Writer, s settings.Settings, level *logs.Level) slog.Handler {
	opts := []logs.Option{logs.Start(time.Now())}
	if s.Log.JSON {
		opts = append(opts, logs.JSON())
	}
	return logs.New(w, level, opts...)
}
