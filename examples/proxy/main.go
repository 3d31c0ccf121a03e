// Command proxy is a reverse proxy made of gotower's packages. It takes the
// target of a request from l5d-dst-override, the authority or the Host header,
// resolves it with a destination controller, and balances over what it finds.
//
// This file reads the environment. The path of a request is in package
// outbound, what surrounds it in package sidecar.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// The exit codes of linkerd's proxy.
const (
	exitFailed    = 1
	exitBadConfig = 64
)

func main() {
	if len(os.Args) > 1 {
		usage(os.Stdout)
		return
	}
	c, err := readConfig(os.LookupEnv)
	if err != nil {
		fmt.Fprintf(os.Stderr, "Invalid configuration:\n%v\n\nRun with --help for the variables.\n", err)
		os.Exit(exitBadConfig)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = run(ctx, c)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(exitFailed)
	}
}

func run(ctx context.Context, c config) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if c.logJSON {
		log = slog.New(slog.NewJSONHandler(os.Stderr, nil))
	}
	p, err := sidecar.New(c.Config, log)
	if err != nil {
		return err
	}
	return p.Run(ctx)
}
