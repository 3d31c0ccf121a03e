// Command init redirects a network namespace's TCP connections to a proxy in it, by adding
// iptables rules. You should run it once, as root, before the applications start.
//
//	go run ./examples/init -p 4143 -o 4140 -u 2102 --simulate
//
// It accepts the same flags as linkerd's proxy-init. Package redirect computes the rules.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/init/redirect"
	"github.com/gotower/gotower/examples/internal/cli"
)

func main() {
	ctx, stop := cli.Interrupted()
	// os.Exit skips deferred calls, so stop is called before.
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(cli.Status(os.Stderr, "init", err))
}

// run parses the flags, and sets the iptables rules that redirect connections to the proxy. It
// writes the commands of --simulate to out, and its log to errs.
func run(ctx context.Context, args []string, out, errs io.Writer) error {
	s, err := parse(args, errs)
	if err != nil {
		return err
	}
	log, err := s.logger(errs)
	if err != nil {
		return cli.Misuse(err)
	}
	mode, err := redirect.ParseMode(s.mode, s.binary)
	if err != nil {
		return cli.Misuse(err)
	}
	if err := s.Validate(); err != nil {
		return cli.Misuse(err)
	}
	// The flag is accepted, because linkerd's charts may set it.
	if s.save != "" && s.binary == "" {
		log.Warn("--firewall-save-bin-path is ignored: --iptables-mode determines the binary")
	}
	// Invalid entries are left out, as in linkerd's proxy-init.
	for _, list := range [][]string{s.InboundIgnore, s.OutboundIgnore} {
		_, bad := redirect.Ports(list)
		for _, err := range bad {
			log.Warn("an invalid entry of a port list is ignored", "error", err)
		}
	}
	if s.Loops() {
		log.Warn("without --proxy-uid or --proxy-gid the proxy's own connections are redirected to the proxy in a loop")
	}
	// IPv4 comes first, so that it is set even if IPv6 fails.
	families := []redirect.Family{redirect.IPv4, redirect.IPv6}
	if !s.ipv6 {
		families = families[:1]
	}
	p := redirect.Program{
		Mode: mode, Families: families, Netns: s.netns, CloseWait: s.closeWait, Simulate: s.simulate,
		Log: log, Out: out, LookPath: exec.LookPath, Run: command,
	}
	return p.Redirect(ctx, s.Config)
}

// command runs a command and returns its standard output. If the executed command fails,
// the results are its standard error and an error.
func command(ctx context.Context, argv []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // iptables with validated arguments
	cmd.WaitDelay = time.Second                           // its children may outlive it
	out, err := cmd.Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return failed.Stderr, err
	}
	return out, err
}

// settings holds the values of all flags.
type settings struct {
	redirect.Config

	simulate, ipv6 bool
	netns          string
	closeWait      int
	mode           string
	binary, save   string
	format, level  string
}

// parse parses the program's flags. Many flags have a short and a long name.
func parse(args []string, errs io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("init", flag.ContinueOnError)
	// both defines a flag by a long and a short name. add defines it under one name.
	both := func(short, long, usage string, add func(name, usage string)) {
		add(long, usage)
		add(short, "short for --"+long)
	}
	// number returns a function that defines a flag for a number, with -1 for a flag that is not set.
	number := func(to *int) func(name, usage string) {
		return func(name, usage string) { f.IntVar(to, name, -1, usage) }
	}
	both("p", "incoming-proxy-port", "`port` of the proxy for inbound connections", number(&s.IncomingPort))
	both("o", "outgoing-proxy-port", "`port` of the proxy for outbound connections", number(&s.OutgoingPort))
	both("u", "proxy-uid", "`uid` of the proxy; its connections are not redirected", number(&s.UID))
	both("g", "proxy-gid", "`gid` of the proxy; its connections are not redirected", number(&s.GID))
	// The flag may be repeated, and each time it adds ports.
	both("r", "ports-to-redirect", "`ports`: redirect only these inbound ports", func(n, u string) {
		f.Func(n, u, func(v string) (err error) { s.PortsToRedirect, err = numbers(s.PortsToRedirect, v); return err })
	})
	both("w", "use-wait-flag", "wait for the xtables lock", func(n, u string) { f.BoolVar(&s.Wait, n, false, u) })
	// These flags may be repeated as well.
	for name, list := range map[string]*[]string{
		"inbound-ports-to-ignore": &s.InboundIgnore, "outbound-ports-to-ignore": &s.OutboundIgnore, "subnets-to-ignore": &s.SubnetsToIgnore,
	} {
		f.Func(name, "comma-separated `list` that is not redirected", func(v string) error {
			*list = append(*list, entries(v)...)
			return nil
		})
	}
	f.BoolVar(&s.simulate, "simulate", false, "print the commands instead of running them")
	f.BoolVar(&s.ipv6, "ipv6", true, "also redirect IPv6")
	f.StringVar(&s.netns, "netns", "", "`path` of the network namespace; default: the current one")
	f.IntVar(&s.closeWait, "timeout-close-wait-secs", 0, "conntrack timeout of half-closed connections in `seconds`; 0: unchanged")
	f.StringVar(&s.mode, "iptables-mode", "", "legacy, nft or plain; default: from --firewall-bin-path")
	f.StringVar(&s.binary, "firewall-bin-path", "", "iptables-legacy, iptables-nft or iptables; prefer --iptables-mode")
	f.StringVar(&s.save, "firewall-save-bin-path", "", "ignored; the mode determines the binary")
	f.StringVar(&s.format, "log-format", "plain", "plain or json")
	f.StringVar(&s.level, "log-level", "info", "debug, info, warn or error")
	cli.Describe(f, "init redirects the connections of a network namespace to a proxy in it, by iptables.")
	return s, cli.Parse(f, args, errs)
}

// entries splits a comma-separated list. An empty list has no entries.
func entries(list string) (all []string) {
	if strings.TrimSpace(list) == "" {
		return nil
	}
	for text := range strings.SplitSeq(list, ",") {
		all = append(all, strings.TrimSpace(text))
	}
	return all
}

// numbers appends the ports in list, which is comma-separated, to ports.
func numbers(ports []int, list string) ([]int, error) {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%q: must be a port", text)
		}
		ports = append(ports, n)
	}
	return ports, nil
}

// logger returns a logger that writes to w, with the level and the format from the flags.
func (s settings) logger(w io.Writer) (*slog.Logger, error) {
	var opts slog.HandlerOptions
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.level)); err != nil {
		return nil, fmt.Errorf("--log-level: %q must be debug, info, warn or error", s.level)
	}
	opts.Level = level
	switch s.format {
	case "plain":
		return slog.New(slog.NewTextHandler(w, &opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &opts)), nil
	}
	return nil, fmt.Errorf("--log-format: %q must be plain or json", s.format)
}
