// Command proxy is the sidecar of a pod, made of gotower's packages: it takes
// the connections of the application and those to it, resolves and balances what
// goes out with a destination controller, and can be watched while it runs.
//
// This file reads the settings. The path of a request is in packages outbound
// and inbound, what surrounds it in package sidecar.
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
		fmt.Fprintf(os.Stderr, "Invalid configuration:\n%v\n\nRun with --help for what can be set.\n", err)
		os.Exit(exitBadConfig)
	}
	if err := run(s); err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(exitFailed)
	}
}

// read returns what the flags and the environment say, or flag.ErrHelp once
// that was written.
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
		return settings.Settings{}, fmt.Errorf("%q: only flags are taken", flags.Arg(0))
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
		"It reads these variables, each with the prefix %s if it has none here; a default is in\n"+
		"brackets. A file says the same in YAML: the names in lower case without their prefix, or nested\n"+
		"at any _, as in \"outbound: {connect_timeout: 2s}\". Variables win over it.\n\n", settings.Prefix)
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
		available := runtime.GOMAXPROCS(0) // which knows of the cgroup
		n := s.Cores.Count(available)
		if s.Cores.Min > n {
			log.Warn("there are fewer processors than asked for", "asked", s.Cores.Min)
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
