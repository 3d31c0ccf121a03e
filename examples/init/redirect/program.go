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

// Mode selects the iptables binary.
type Mode string

// The modes. The zero Mode is Legacy.
const (
	Legacy Mode = "legacy" // the kernel's own tables
	NFT    Mode = "nft"    // nftables with the iptables commands
	Plain  Mode = "plain"  // the system's default
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

// ParseMode returns the mode with this name. If name is "", the binary determines the
// mode: "iptables-legacy", "iptables-nft" or "iptables". The default is Legacy.
func ParseMode(name, binary string) (Mode, error) {
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

// Program applies rules.
type Program struct {
	Mode      Mode
	Families  []Family // in this order
	Netns     string   // path of the network namespace; "": the current one
	CloseWait int      // conntrack timeout of half-closed connections in seconds; 0: unchanged
	Simulate  bool     // print the commands instead of running them

	Log *slog.Logger
	Out io.Writer // for Simulate

	// LookPath finds a binary. Run runs a command and returns its output.
	LookPath func(name string) (string, error)
	Run      func(ctx context.Context, argv []string) ([]byte, error)
}

// Redirect replaces the content of the chains by the rules of c. If a command fails, the
// effects of earlier commands stay.
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

// Cleanup removes the rules of Redirect.
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
	// nft reports a missing table on standard error; it is empty.
	for _, rule := range rules(Parse(string(before))) {
		if _, err := p.command(ctx, binary, slices.Concat([]string{"-t", "nat"}, rule)...); err != nil {
			return err
		}
	}
	if after, err := p.command(ctx, binary+"-save", "-t", "nat"); err == nil {
		p.Log.DebugContext(ctx, "the current rules", "rules", string(after))
	}
	return nil
}

// binary returns the iptables binary for the mode. If it is missing, binary returns
// another installed variant.
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
	return "", fmt.Errorf("%s is not installed, nor another iptables: install the package iptables", wanted)
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
		return nil, fmt.Errorf("%s: %w%s", line, err, oneLine(out))
	}
	return out, nil
}

// oneLine returns the output of a failed command on one line.
func oneLine(out []byte) string {
	var b strings.Builder
	for text := range strings.Lines(string(out)) {
		if text = strings.TrimSpace(text); text != "" {
			b.WriteString(": " + text)
		}
	}
	return b.String()
}
