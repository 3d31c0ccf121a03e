// Package redirect computes the iptables rules that redirect TCP connections to a proxy.
// They apply to all connections of a network namespace, such as that of a pod.
//
//	           ┌──────────────── network namespace ───────────────┐
//	from       │ PREROUTING → PROXY_INIT_REDIRECT → inbound port  │
//	outside ──▶│   all but ignored ports and subnets              │
//	           │                                                  │
//	to         │ OUTPUT → PROXY_INIT_OUTPUT → outbound port       │
//	outside ◀──│   all but the proxy's own, loopback and ignored  │
//	           └──────────────────────────────────────────────────┘
//
// The proxy reads the original destination of a connection from the kernel, by
// SO_ORIGINAL_DST. The rules, their order and their comments are those of linkerd's
// proxy-init, so that each of the two programs can replace the rules of the other.
//
// [Rules] computes the commands from a [Config] and the existing rules, which [Parse]
// reads. [Program] runs the commands.
package redirect
