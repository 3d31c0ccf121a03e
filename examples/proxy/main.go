// Command proxy is the sidecar of a pod, made of gotower's packages. It proxies the
// connections of the application and those to it, balances outbound requests over the
// endpoints of a destination controller, and serves tap and metrics.
//
// This file reads the settings. The path of a request is in packages outbound and inbound.
// Package sidecar assembles the proxy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/gotower/gotower/examples/proxy/logs"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// The exit codes of linkerd's proxy.
const (
	exitFailed    = 1
	exitBadConfig = 64
)

func main() {
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

// read returns the settings of the flags and the environment. After --help it returns
// flag.ErrHelp.
func read(args []string, lookup func(string) (string, bool), help io.Writer) (settings.Settings, error) {
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
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
	return s, errors.Join(err, s.Identity.Check())
}

func usage(w io.Writer) error {
	_, err := fmt.Fprintf(w, "usage: proxy [--config file.yaml]\n\n"+
		"The settings are environment variables with the prefix %s, unless another prefix is shown.\n"+
		"Defaults are in brackets. A YAML file has the same names in lower case without the prefix, or nested\n"+
		"at any _, as in \"outbound: {connect_timeout: 2s}\". Variables override the file.\n\n", settings.Prefix)
	return errors.Join(err, settings.Help(w))
}

func run(s settings.Settings) error {
	level, err := logs.NewLevel(s.Log.Filter)
	if err != nil {
		return err
	}
	log := slog.New(newHandler(s, level))
	for _, w := range s.Warnings {
		log.Warn("configuration", "warning", w)
	}
	if s.Cores != (settings.Cores{}) {
		available := runtime.GOMAXPROCS(0) // the limit of the cgroup
		n := s.Cores.Count(available)
		if s.Cores.Min > n {
			log.Warn("fewer processors are available than configured", "configured", s.Cores.Min)
		}
		runtime.GOMAXPROCS(n)
		log.Info("using processors", "n", n, "of", available)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p, err := sidecar.New(sidecar.Config{Settings: s, Level: level}, log)
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

func newHandler(s settings.Settings, level *logs.Level) slog.Handler {
	opts := []logs.Option{logs.Start(time.Now())}
	if s.Log.JSON {
		opts = append(opts, logs.JSON())
	}
	return logs.New(os.Stderr, level, opts...)
}
