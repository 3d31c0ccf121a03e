// Package redirect computes the iptables rules that redirect TCP connections to a proxy. They
// apply to all connections in a network namespace, usually a pod's.
//
//	           ┌──────────────── network namespace ───────────────┐
//	from       │ PREROUTING → PROXY_INIT_REDIRECT → inbound port  │
//	outside ──▶│   all but ignored ports and subnets              │
//	           │                                                  │
//	to         │ OUTPUT → PROXY_INIT_OUTPUT → outbound port       │
//	outside ◀──│   all but the proxy's own, loopback and ignored  │
//	           └──────────────────────────────────────────────────┘
//
// The proxy reads a connection's original destination from the kernel, with SO_ORIGINAL_DST. The
// rules, their order and their comments are the same as linkerd's proxy-init writes, so that each
// of the two programs can replace the other's rules.
//
// [Rules] computes the commands from a [Config] and the existing rules, which [Parse] reads.
// [Program] runs the commands.
package redirect
