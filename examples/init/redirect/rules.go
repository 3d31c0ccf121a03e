package redirect

import (
	"net/netip"
	"strconv"
	"strings"
)

// The names of the iptables chains: for inbound connections, and for outbound connections.
const (
	RedirectChain = "PROXY_INIT_REDIRECT"
	OutputChain   = "PROXY_INIT_OUTPUT"
)

// Family is an address family. It is true for IPv6.
type Family bool

// The address families.
const (
	IPv4 Family = false
	IPv6 Family = true
)

// Existing describes which chains and rules of the proxy exist.
type Existing struct {
	Redirect, Output         bool // the chains RedirectChain and OutputChain
	RedirectJump, OutputJump bool // the rules that jump to these chains
}

// Parse returns which chains and rules exist. dump is the output of iptables-save for the
// table nat.
func Parse(dump string) (e Existing) {
	// Each line is a chain, which begins with a colon, or a rule as arguments to iptables.
	for line := range strings.Lines(dump) {
		line = strings.TrimSpace(line)
		// jumps reports whether the line is a rule of the chain from that jumps to the chain to.
		jumps := func(from, to string) bool {
			rest, ok := strings.CutPrefix(line, "-A "+from+" ")
			// The spaces make sure that only whole arguments match.
			return ok && strings.Contains(" "+rest+" ", " -j "+to+" ")
		}
		e.Redirect = e.Redirect || strings.HasPrefix(line, ":"+RedirectChain+" ")
		e.Output = e.Output || strings.HasPrefix(line, ":"+OutputChain+" ")
		e.RedirectJump = e.RedirectJump || jumps("PREROUTING", RedirectChain)
		e.OutputJump = e.OutputJump || jumps("OUTPUT", OutputChain)
	}
	return e
}

// Rule is the arguments of one iptables command, without "-t nat".
type Rule []string

// Rules returns the commands that set c's rules for one address family. e describes the existing
// rules. The commands may be run repeatedly, because they first empty chains that exist. Subnets
// of the other address family are left out.
func Rules(c Config, family Family, e Existing) (rules []Rule) {
	// add appends a command. Its comment tells administrators where the rule comes from.
	add := func(tag string, args ...string) {
		if tag != "" {
			args = append(args, "-m", "comment", "--comment", "proxy-init/"+tag)
		}
		if c.Wait {
			args = append(args, "-w")
		}
		rules = append(rules, args)
	}
	// The order of the rules matters: the first one that matches decides. So exceptions come first.
	add("", begin(e.Redirect), RedirectChain)
	ignorePorts(add, RedirectChain, c.InboundIgnore)
	for _, s := range c.SubnetsToIgnore {
		if p, err := netip.ParsePrefix(s); err == nil && Family(p.Addr().Is6()) == family {
			add("ignore-subnet-"+s, "-A", RedirectChain, "-p", "all", "-j", "RETURN", "-s", s)
		}
	}
	in := strconv.Itoa(c.IncomingPort)
	for _, port := range c.PortsToRedirect {
		p := strconv.Itoa(port)
		add("redirect-port-"+p+"-to-proxy-port",
			"-A", RedirectChain, "-p", "tcp", "--destination-port", p, "-j", "REDIRECT", "--to-port", in)
	}
	// Without a list, all ports are redirected.
	if len(c.PortsToRedirect) == 0 {
		add("redirect-all-incoming-to-proxy-port", "-A", RedirectChain, "-p", "tcp", "-j", "REDIRECT", "--to-port", in)
	}
	// The jump survives from an earlier run. A second one would do everything twice.
	if !e.RedirectJump {
		add("install-proxy-init-prerouting", "-A", "PREROUTING", "-j", RedirectChain)
	}
	output(add, c, e)
	return rules
}

// output passes the commands for outbound connections to the function add, one command for each
// call. The first argument of add is the rule's comment, or "" for a command without a comment.
func output(add func(tag string, args ...string), c Config, e Existing) {
	add("", begin(e.Output), OutputChain)
	// The proxy's own connections must not return to the proxy.
	if c.UID > 0 {
		add("ignore-proxy-user-id", "-A", OutputChain, "-m", "owner", "--uid-owner", strconv.Itoa(c.UID), "-j", "RETURN")
	}
	if c.GID > 0 {
		add("ignore-proxy-group-id", "-A", OutputChain, "-m", "owner", "--gid-owner", strconv.Itoa(c.GID), "-j", "RETURN")
	}
	// Connections to the pod itself do not leave it.
	add("ignore-loopback", "-A", OutputChain, "-o", "lo", "-j", "RETURN")
	ignorePorts(add, OutputChain, c.OutboundIgnore)
	add("redirect-all-outgoing-to-proxy-port",
		"-A", OutputChain, "-p", "tcp", "-j", "REDIRECT", "--to-port", strconv.Itoa(c.OutgoingPort))
	if !e.OutputJump {
		add("install-proxy-init-output", "-A", "OUTPUT", "-j", OutputChain)
	}
}

// begin returns the flag of iptables that empties a chain if the chain exists, and creates
// it otherwise.
func begin(exists bool) string {
	if exists {
		return "-F"
	}
	return "-N"
}

// ignorePorts adds commands that make a chain exclude ports from the redirection. It passes each
// command to add. entries look as in [Ports].
func ignorePorts(add func(tag string, args ...string), chain string, entries []string) {
	// Invalid entries have been reported by Validate's caller.
	ports, _ := Ports(entries)
	// A rule can match only a limited number of ports.
	for _, list := range chunks(ports) {
		add("ignore-port-"+list, "-A", chain, "-p", "tcp", "--match", "multiport", "--dports", list, "-j", "RETURN")
	}
}

// jump returns the command that adds or deletes the rule for a jump from one chain to another.
// verb is an iptables flag, such as "-D" to delete the rule. tag ends the rule's comment.
func jump(verb, from, to, tag string) Rule {
	return Rule{verb, from, "-j", to, "-m", "comment", "--comment", "proxy-init/install-proxy-init-" + tag}
}

// Cleanup returns the commands that remove the existing chains and rules of the proxy.
func Cleanup(e Existing) (rules []Rule) {
	for _, r := range []struct {
		exists bool
		args   Rule
	}{
		// First the jumps, because a chain with a jump to it cannot be deleted.
		{e.RedirectJump, jump("-D", "PREROUTING", RedirectChain, "prerouting")},
		{e.OutputJump, jump("-D", "OUTPUT", OutputChain, "output")},
		{e.Output, Rule{"-F", OutputChain}},
		{e.Redirect, Rule{"-F", RedirectChain}},
		{e.Output, Rule{"-X", OutputChain}},
		{e.Redirect, Rule{"-X", RedirectChain}},
	} {
		if r.exists {
			rules = append(rules, r.args)
		}
	}
	return rules
}
