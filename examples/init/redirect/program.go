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

// Mode is which iptables is used.
type Mode string

// The modes. The zero Mode is Legacy.
const (
	Legacy Mode = "legacy" // the kernel's own tables
	NFT    Mode = "nft"    // nftables behind the old commands
	Plain  Mode = "plain"  // whichever of them "iptables" is
)

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

// ParseMode returns the mode of a name, or else of the path of a binary: one of
// "iptables-legacy", "iptables-nft" and "iptables". Without either it is Legacy.
func ParseMode(name, binary string) (Mode, error) {
	switch m := Mode(name); m {
	case Legacy, NFT, Plain:
		return m, nil
	case "":
	default:
		return "", fmt.Errorf("--iptables-mode: %q is none of legacy, nft and plain", name)
	}
	switch binary {
	case "", "iptables-legacy":
		return Legacy, nil
	case "iptables-nft":
		return NFT, nil
	case "iptables":
		return Plain, nil
	}
	return "", fmt.Errorf("--firewall-bin-path: %q is none of iptables-legacy, iptables-nft and iptables", binary)
}

// Program carries rules out.
type Program struct {
	Mode      Mode
	Families  []Family // in this order
	Netns     string   // the path of the network namespace; "" is this one
	CloseWait int      // seconds that the kernel remembers half-closed connections for; 0 leaves that alone
	Simulate  bool     // print the commands, and run none

	Log *slog.Logger
	Out io.Writer // for what is simulated

	// LookPath finds a binary, and Run runs a command and returns what it says.
	LookPath func(name string) (string, error)
	Run      func(ctx context.Context, argv []string) ([]byte, error)
}

// Redirect makes the rules of c be in force, and nothing else in their chains.
// Where a command fails, what those before it did stays.
func (p Program) Redirect(ctx context.Context, c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if p.CloseWait != 0 {
		set := "net.netfilter.nf_conntrack_tcp_timeout_close_wait=" + strconv.Itoa(p.CloseWait)
		if _, err := p.command(ctx, "sysctl", "-w", set); err != nil {
			return err
		}
	}
	for _, family := range p.Families {
		if err := p.apply(ctx, family, func(e Existing) []Rule { return Rules(c, family, e) }); err != nil {
			return err
		}
	}
	return nil
}

// Cleanup takes away what Redirect made.
func (p Program) Cleanup(ctx context.Context) error {
	for _, family := range p.Families {
		if err := p.apply(ctx, family, Cleanup); err != nil {
			return err
		}
	}
	return nil
}

func (p Program) apply(ctx context.Context, family Family, rules func(Existing) []Rule) error {
	binary, err := p.binary(family)
	if err != nil {
		return err
	}
	before, err := p.command(ctx, binary+"-save", "-t", "nat")
	if err != nil {
		return err
	}
	// With nft a table that is not there yet is said on the side; it is empty.
	for _, rule := range rules(Parse(string(before))) {
		if _, err := p.command(ctx, binary, slices.Concat([]string{"-t", "nat"}, rule)...); err != nil {
			return err
		}
	}
	if after, err := p.command(ctx, binary+"-save", "-t", "nat"); err == nil {
		p.Log.DebugContext(ctx, "the rules as they are now", "rules", string(after))
	}
	return nil
}

// binary returns the name of iptables, that of the mode or else of another one
// that there is.
func (p Program) binary(family Family) (string, error) {
	name := "iptables"
	if family == IPv6 {
		name = "ip6tables"
	}
	wanted := name + p.Mode.suffix()
	if p.Simulate {
		return wanted, nil
	}
	for _, m := range []Mode{p.Mode, NFT, Plain, Legacy} {
		if _, err := p.LookPath(name + m.suffix()); err == nil {
			return name + m.suffix(), nil
		}
	}
	return "", fmt.Errorf("there is no %s, nor another iptables: install the package iptables", wanted)
}

// command runs a command, or prints it.
func (p Program) command(ctx context.Context, name string, args ...string) ([]byte, error) {
	argv := append([]string{name}, args...)
	if p.Netns != "" {
		argv = append([]string{"nsenter", "--net=" + p.Netns, "--"}, argv...)
	}
	line := strings.Join(argv, " ")
	if p.Simulate {
		if strings.HasSuffix(name, "-save") {
			return nil, nil
		}
		_, err := fmt.Fprintln(p.Out, line)
		return nil, err
	}
	p.Log.InfoContext(ctx, "run", "command", line)
	out, err := p.Run(ctx, argv)
	if err != nil {
		return nil, fmt.Errorf("%s: %w%s", line, err, complaint(out))
	}
	return out, nil
}

// complaint is what a command that failed said, in the same line.
func complaint(out []byte) string {
	var said strings.Builder
	for text := range strings.Lines(string(out)) {
		if text = strings.TrimSpace(text); text != "" {
			said.WriteString(": " + text)
		}
	}
	return said.String()
}
