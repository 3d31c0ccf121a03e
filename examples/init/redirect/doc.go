// Package redirect computes the iptables rules that redirect the TCP connections of a
// network namespace, such as a pod, to a proxy in it.
//
//	           ┌──────────────── network namespace ───────────────┐
//	from       │ PREROUTING → PROXY_INIT_REDIRECT → inbound port  │
//	outside ──▶│   all but ignored ports and subnets              │
//	           │                                                  │
//	to         │ OUTPUT → PROXY_INIT_OUTPUT → outbound port       │
//	outside ◀──│   all but the proxy's own, loopback and ignored  │
//	           └──────────────────────────────────────────────────┘
//
// The proxy gets the original destination of a connection from the kernel by
// SO_ORIGINAL_DST. The rules are those of linkerd's proxy-init, in the same order and with
// the same comments, so that one can replace the other.
//
// [Rules] computes the commands from a [Config] and the existing rules ([Parse]). [Program]
// runs them.
package redirect
