package redirect_test

import (
	"fmt"
	"strings"

	"github.com/gotower/gotower/examples/init/redirect"
)

// The rules for a namespace in which the chain of outbound connections exists.
func ExampleRules() {
	c := redirect.Config{IncomingPort: 4143, OutgoingPort: 4140, UID: 2102, GID: -1}
	there := redirect.Parse(":PROXY_INIT_OUTPUT - [0:0]\n-A OUTPUT -j PROXY_INIT_OUTPUT\n")
	for _, rule := range redirect.Rules(c, redirect.IPv4, there) {
		what, _, _ := strings.Cut(strings.Join(rule, " "), " -m comment")
		fmt.Println("iptables -t nat", what)
	}
	// Output:
	// iptables -t nat -N PROXY_INIT_REDIRECT
	// iptables -t nat -A PROXY_INIT_REDIRECT -p tcp -j REDIRECT --to-port 4143
	// iptables -t nat -A PREROUTING -j PROXY_INIT_REDIRECT
	// iptables -t nat -F PROXY_INIT_OUTPUT
	// iptables -t nat -A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -j RETURN
	// iptables -t nat -A PROXY_INIT_OUTPUT -o lo -j RETURN
	// iptables -t nat -A PROXY_INIT_OUTPUT -p tcp -j REDIRECT --to-port 4140
}
