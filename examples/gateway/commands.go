package main

import (
	"context"
	_ "embed" // for "gateway help file"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/profiles"
)

// command is one of the gateway's commands.
type command struct {
	name string
	args string // argument names, as the help shows them; one in brackets is optional
	does string
	opts func(*flag.FlagSet, *commandLine) // registers flags; nil if there are none
	run  func(context.Context, *commandLine) error
}

// commandLine holds a command's arguments, flags and outputs.
type commandLine struct {
	args           []string // one for each name in command.args, except an optional one that is missing
	header         http.Header
	client         string // the client's address, with a port
	level          slog.Level
	json           bool // log as JSON instead of text
	stdout, stderr io.Writer
	routes         profiles.Source // instead of the configuration's routes; may be nil
}

// commands returns all commands, as the help lists them.
func commands() []command {
	return []command{
		{"run", "FILE", "serves until SIGTERM; reloads FILE on changes and on SIGHUP", logFlags, serveFile},
		{"check", "FILE", "reports each mistake in FILE, and routes that no request reaches", nil, checkFile},
		{"explain", "FILE METHOD URL", "reports the route and the service that a request would use", requestFlags, explain},
		{"config", "FILE", "prints the configuration with all defaults, included files and variables", nil, printConfig},
		{"health", "[FILE]", "succeeds if the gateway of FILE is ready, for images without a shell", nil, checkHealth},
		{"version", "", "prints the version", nil, printVersion},
		{"completion", "bash|zsh", "prints the completion of a shell: source <(gateway completion bash)", nil, printCompletion},
		{"help", "[file]", "prints this text, or every field of FILE with its default", nil, printHelp},
	}
}

// run runs the command in args. Results and help go to stdout, and logs to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	name := "" // no command
	if len(args) > 0 {
		name = args[0]
		args = args[1:]
	}
	// Flags in place of a command are common, so they work too.
	switch name {
	case "-h", "-help", "--help":
		name = "help"
	case "-version", "--version":
		name = "version"
	}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == name })
	if i < 0 {
		return cli.Misuse(fmt.Errorf("command %q: want one of %s", name, strings.Join(namesOf(all), ", ")))
	}
	line := &commandLine{header: make(http.Header), stdout: stdout, stderr: stderr}
	if err := line.parse(all[i], args); err != nil {
		return err
	}
	return all[i].run(ctx, line)
}

// namesOf returns the commands' names in order.
func namesOf(commands []command) []string {
	names := make([]string, 0, len(commands))
	for _, c := range commands {
		names = append(names, c.name)
	}
	return names
}

// parse parses args, which follow the name of command c. Flags may appear anywhere among the
// arguments, which package flag does not support by itself.
func (l *commandLine) parse(c command, args []string) error {
	flags := c.flags(l)
	// Package flag stops at the first argument. Take it, and parse flags again after it.
	for rest := args; ; rest = flags.Args()[1:] {
		if err := cli.ParseFlags(flags, rest, l.stdout); err != nil {
			return err
		}
		if flags.NArg() == 0 {
			break
		}
		l.args = append(l.args, flags.Arg(0))
	}
	params := strings.Fields(c.args)
	// An argument in brackets may be missing.
	if len(l.args) == len(params) || len(l.args) == 0 && strings.HasPrefix(c.args, "[") {
		return nil
	}
	return cli.Misuse(fmt.Errorf("%d arguments: want %s", len(l.args), strings.TrimSpace("gateway "+c.name+" "+c.args)))
}

// flags returns the flags of c, which store their values in l.
func (c command) flags(l *commandLine) *flag.FlagSet {
	f := flag.NewFlagSet("gateway "+c.name, flag.ContinueOnError)
	if c.opts != nil {
		c.opts(f, l)
	}
	cli.Describe(f, fmt.Sprintf("gateway %s %s\n\n%s", c.name, c.args, c.does))
	return f
}

// logFlags registers the flags of the log in f.
func logFlags(f *flag.FlagSet, l *commandLine) {
	// UnmarshalText also accepts forms such as info+2, which are too much for a flag.
	f.Func("log-level", "the lowest `level` of the log: debug, info, warn or error (default info)", func(text string) error {
		if !slices.Contains([]string{"debug", "info", "warn", "error"}, text) {
			return errors.New("want debug, info, warn or error")
		}
		return l.level.UnmarshalText([]byte(text))
	})
	f.Func("log-format", "the `format` of the log: text or json (default text)", func(text string) error {
		if text != "text" && text != "json" {
			return errors.New("want text or json")
		}
		l.json = text == "json"
		return nil
	})
}

// logHandler returns the handler for the gateway's log, which writes to w.
func (l *commandLine) logHandler(w io.Writer) slog.Handler {
	opts := &slog.HandlerOptions{Level: l.level}
	if l.json {
		return slog.NewJSONHandler(w, opts)
	}
	return slog.NewTextHandler(w, opts)
}

// requestFlags registers the flags that describe a request.
func requestFlags(f *flag.FlagSet, l *commandLine) {
	f.Func("client", "the IP `address` of the client", func(text string) error {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return errors.New("want an IP address")
		}
		// RemoteAddr has a port, which does not matter for a rule.
		l.client = netip.AddrPortFrom(address, 0).String()
		return nil
	})
	f.Func("H", "a header `field` of the request, such as 'X-User: 7'; may be repeated", func(text string) error {
		name, value, ok := strings.Cut(text, ":")
		if !ok {
			return errors.New("want a header field such as 'X-User: 7'")
		}
		l.header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		return nil
	})
}

// checkFile checks the configuration file and prints warnings about what probably is a mistake.
func checkFile(_ context.Context, l *commandLine) error {
	warnings, err := config.Check(l.args[0])
	if err != nil {
		return err
	}
	for _, w := range warnings {
		fmt.Fprintf(l.stdout, "warning: %v\n", w)
	}
	fmt.Fprintf(l.stdout, "%s is valid\n", l.args[0])
	return nil
}

// printConfig prints the configuration as the gateway sees it.
func printConfig(_ context.Context, l *commandLine) error {
	c, err := config.Load(l.args[0])
	if err != nil {
		return err
	}
	text, err := c.Encode()
	if err != nil {
		return err
	}
	_, err = l.stdout.Write(text)
	return err
}

// checkHealth requests /readyz at the admin address in the file, or at the default address.
func checkHealth(ctx context.Context, l *commandLine) error {
	address := string(config.DefaultAdmin)
	if len(l.args) == 1 {
		c, err := config.Load(l.args[0])
		if err != nil {
			return err
		}
		address = string(c.Admin.Address)
	}
	host, port, _ := net.SplitHostPort(address) // was checked with the file
	// The gateway listens on all addresses, of which localhost is one.
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	const limit = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	// The command ends after one request.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	rsp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
	// The text explains why the gateway is not ready. A limit protects against another server at the address.
	text, err := io.ReadAll(io.LimitReader(rsp.Body, 4096))
	if err == nil && rsp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %s", req.URL, rsp.StatusCode, strings.TrimSpace(string(text)))
	}
	return err
}

// printVersion prints the version and the commit from which the program was built.
func printVersion(_ context.Context, l *commandLine) error {
	number := "unknown"
	commit := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		number = info.Main.Version
		for _, s := range info.Settings {
			switch {
			// The go command stores the revision before the mark of local changes.
			case s.Key == "vcs.revision":
				commit = " " + s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				commit += " with local changes"
			}
		}
	}
	_, err := fmt.Fprintf(l.stdout, "gateway %s%s %s %s/%s\n", number, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// printCompletion prints a completion script. zsh can run the one for bash.
func printCompletion(_ context.Context, l *commandLine) error {
	shell := l.args[0]
	if shell != "bash" && shell != "zsh" {
		return cli.Misuse(fmt.Errorf("shell %q: want bash or zsh", shell))
	}
	if shell == "zsh" {
		fmt.Fprintln(l.stdout, "autoload -U +X bashcompinit && bashcompinit")
	}
	var options []string
	all := commands()
	// Completion offers the flags of all commands, because the shell does not know which ones apply.
	for _, c := range all {
		c.flags(&commandLine{}).VisitAll(func(f *flag.Flag) { options = append(options, "-"+f.Name) })
	}
	_, err := fmt.Fprintf(l.stdout, `_gateway() {
	local word=${COMP_WORDS[COMP_CWORD]}
	if [[ $COMP_CWORD == 1 ]]; then
		COMPREPLY=($(compgen -W "%s" -- "$word"))
	elif [[ $word == -* ]]; then
		COMPREPLY=($(compgen -W "%s" -- "$word"))
	else
		COMPREPLY=($(compgen -f -- "$word"))
	fi
}
complete -o filenames -F _gateway gateway
`, strings.Join(namesOf(all), " "), strings.Join(options, " "))
	return err
}

// completeFile is a configuration file with every field, which "gateway help file" prints.
//
//go:embed complete.yaml
var completeFile string

// printHelp prints the list of commands, or with the topic "file" a configuration with every field.
func printHelp(_ context.Context, l *commandLine) error {
	switch {
	// Without a topic, print the commands.
	case len(l.args) == 0:
	case l.args[0] == "file":
		_, err := io.WriteString(l.stdout, completeFile)
		return err
	default:
		return cli.Misuse(fmt.Errorf("topic %q: want file", l.args[0]))
	}
	fmt.Fprint(l.stdout, `gateway is an HTTP gateway that is configured by one YAML file. It routes requests by host, path, method,
header and query to balanced services, with retries, timeouts, limits and a live view of the requests.

`)
	for _, c := range commands() {
		fmt.Fprintf(l.stdout, "  gateway %-24s  %s\n", strings.TrimSpace(c.name+" "+c.args), c.does)
	}
	_, err := fmt.Fprint(l.stdout, "\nFILE may be -, which is standard input. gateway COMMAND -h lists the flags of a command.\n")
	return err
}
