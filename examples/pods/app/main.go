// Command app is the applications of examples/pods: servers and clients as
// anybody writes them, who never heard of a proxy. It imports nothing of
// gotower.
//
//	app http  :8080           a server of HTTP, which echoes
//	app post  URL N MARKER    a client of it
//	app grpc  :9090           a server of gRPC, which echoes
//	app call  HOST:PORT N MARKER   a client of it, in all four shapes
//	app mail  :2525           a server that speaks first
//
// What is given as MARKER is in all that a client sends, and all that a server
// answers. A server answers with the name of its pod, which is in POD.
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

func run(ctx context.Context, args []string) error {
	servers := map[string]func(ctx context.Context, pod, addr string) error{"http": serveHTTP, "grpc": serveGRPC, "mail": serveMail}
	clients := map[string]func(ctx context.Context, to, marker string, n int) error{"post": postHTTP, "call": callGRPC}
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
	return fmt.Errorf("%q: what is that? See the comment at the top of main.go", args)
}
