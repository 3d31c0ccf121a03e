package redirect

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
)

// Mode selects the variant of the iptables program.
type Mode string

// The variants of the iptables program. The zero value of Mode means Legacy.
const (
	Legacy Mode = "legacy" // iptables-legacy, which uses the tables of the kernel
	NFT    Mode = "nft"    // iptables-nft, which uses nftables
	Plain  Mode = "plain"  // iptables, the default variant of the system
)

// suffix returns the suffix of the iptables program's name.
func (m Mode) suffix() string {
	switch m {
	case NFT:
		return "-nft"
	case Plain:
		return ""
	case Legacy:
	}
	return "-legacy"
}

// ParseMode returns the mode with the given name. If name is empty, binary determines the mode.
// It is a program's name: "iptables-legacy", "iptables-nft" or "iptables". If both arguments are
// empty, the mode is Legacy.
func ParseMode(name, binary string) (Mode, error) {
	// The mode has precedence over the name of the program.
	switch m := Mode(name); m {
	case Legacy, NFT, Plain:
		return m, nil
	case "":
	default:
		return "", fmt.Errorf("--iptables-mode: %q must be legacy, nft or plain", name)
	}
	switch binary {
	case "", "iptables-legacy":
		return Legacy, nil
	case "iptables-nft":
		return NFT, nil
	case "iptables":
		return Plain, nil
	}
	return "", fmt.Errorf("--firewall-bin-path: %q must be iptables-legacy, iptables-nft or iptables", binary)
}

// Program runs the iptables commands that set the rules, or prints them.
type Program struct {
	Mode      Mode
	Families  []Family // address families to set rules for, in this order
	Netns     string   // path of the network namespace; "": the current one
	CloseWait int      // conntrack timeout of half-closed connections in seconds; 0: unchanged
	Simulate  bool     // print the commands instead of running them

	Log *slog.Logger
	Out io.Writer // receives the commands if Simulate is set

	// LookPath finds a program, as exec.LookPath does. Run runs a command and returns its standard output,
	// or its standard error if it fails.
	LookPath func(name string) (string, error)
	Run      func(ctx context.Context, argv []string) ([]byte, error)
}

// Redirect sets the rules that c describes. They replace all rules in [RedirectChain] and
// [OutputChain]. If a command fails, Redirect returns its error, and the effects of earlier
// commands stay.
func (p Program) Redirect(ctx context.Context, c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	// A timeout of 0 means that the system's stays.
	if p.CloseWait != 0 {
		set := "net.netfilter.nf_conntrack_tcp_timeout_close_wait=" + strconv.Itoa(p.CloseWait)
		if _, err := p.command(ctx, "sysctl", "-w", set); err != nil {
			return err
		}
	}
	for _, family := range p.Families {
		// What exists is known only when apply has asked iptables.
		if err := p.apply(ctx, family, func(e Existing) []Rule { return Rules(c, family, e) }); err != nil {
			return err
		}
	}
	return nil
}

// Cleanup removes the rules and chains that Redirect sets.
func (p Program) Cleanup(ctx context.Context) error {
	for _, family := range p.Families {
		if err := p.apply(ctx, family, Cleanup); err != nil {
			return err
		}
	}
	return nil
}

// apply reads the existing rules of one address family, and passes them to the function rules.
// It then runs iptables with each [Rule] that this function returns.
func (p Program) apply(ctx context.Context, family Family, rules func(Existing) []Rule) error {
	binary, err := p.binary(family)
	if err != nil {
		return err
	}
	// The rules depend on the chains that exist already.
	before, err := p.command(ctx, binary+"-save", "-t", "nat")
	if err != nil {
		return err
	}
	// Without a table nat, the output is empty: nft reports this on standard error.
	for _, rule := range rules(Parse(string(before))) {
		if _, err := p.command(ctx, binary, slices.Concat([]string{"-t", "nat"}, rule)...); err != nil {
			return err
		}
	}
	// The result is only logged, so an error does not matter.
	if after, err := p.command(ctx, binary+"-save", "-t", "nat"); err == nil {
		p.Log.DebugContext(ctx, "the current rules", "rules", string(after))
	}
	return nil
}

// binary returns the name of the iptables program for the address family, in the variant
// p.Mode. If that variant is not installed, binary tries the variants NFT, Plain and Legacy in
// this order. With Simulate, the program need not be installed.
func (p Program) binary(family Family) (string, error) {
	name := "iptables"
	if family == IPv6 {
		name = "ip6tables"
	}
	wanted := name + p.Mode.suffix()
	// A simulation may run on another machine.
	if p.Simulate {
		return wanted, nil
	}
	// The preferred variant comes first, even if it occurs twice.
	for _, m := range []Mode{p.Mode, NFT, Plain, Legacy} {
		if _, err := p.LookPath(name + m.suffix()); err == nil {
			return name + m.suffix(), nil
		}
	}
	return "", fmt.Errorf("%s is not installed, nor another iptables: install the package iptables", wanted)
}

// command runs a command in the network namespace and returns its output. With Simulate it only
// prints the command, if the command would change something.
func (p Program) command(ctx context.Context, name string, args ...string) ([]byte, error) {
	argv := append([]string{name}, args...)
	// nsenter runs the command in the network namespace.
	if p.Netns != "" {
		argv = append([]string{"nsenter", "--net=" + p.Netns, "--"}, argv...)
	}
	line := strings.Join(argv, " ")
	if p.Simulate {
		if strings.HasSuffix(name, "-save") { // only reads rules: treat them as empty
			return nil, nil
		}
		_, err := fmt.Fprintln(p.Out, line)
		return nil, err
	}
	p.Log.InfoContext(ctx, "run", "command", line)
	out, err := p.Run(ctx, argv)
	// The output of a failed command is its standard error.
	if err != nil {
		return nil, fmt.Errorf("%s: %w%s", line, err, oneLine(out))
	}
	return out, nil
}

// oneLine joins the lines of out, a failed command's output. It puts ": " before each line, so
// that the result can be appended to an error message.
func oneLine(out []byte) string {
	var b strings.Builder
	for text := range strings.Lines(string(out)) {
		if text = strings.TrimSpace(text); text != "" {
			b.WriteString(": " + text)
		}
	}
	return b.String()
}
