// Command app contains the applications of examples/pods. They are ordinary servers and clients
// that do not depend on a proxy or on gotower.
//
//	app http  :8080                an HTTP echo server
//	app post  URL N MARKER         an HTTP client, which sends N requests
//	app grpc  :9090                a gRPC echo server
//	app call  HOST:PORT N MARKER   a gRPC client, which makes N calls of each of the four kinds
//	app mail  :2525                an SMTP server, which sends first
//
// All requests and responses contain MARKER. A response contains the name of the server's pod,
// which is in the environment variable POD.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}

// run runs the server or the client in args, as described at the top of this file.
func run(ctx context.Context, args []string) error {
	servers := map[string]func(ctx context.Context, pod, addr string) error{"http": serveHTTP, "grpc": serveGRPC, "mail": serveMail}
	clients := map[string]func(ctx context.Context, to, marker string, n int) error{"post": postHTTP, "call": callGRPC}
	// Servers have one argument and clients three, after the name.
	if len(args) == 2 && servers[args[0]] != nil {
		return servers[args[0]](ctx, os.Getenv("POD"), args[1])
	}
	if len(args) == 4 && clients[args[0]] != nil {
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return clients[args[0]](ctx, args[1], args[3], n)
	}
	return fmt.Errorf("%q: unknown command, see the comment at the top of main.go", args)
}
